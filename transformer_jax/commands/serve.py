"""The `serve` command: an HTTP API and one page that translate."""

import logging
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from transformer_jax import allocator
from transformer_jax.api import Run
from transformer_jax.config.texts import code
from transformer_jax.errors import ConfigError, UserError
from transformer_jax.serving.answers import answer_all, model_of
from transformer_jax.serving.asked import Asked, Limits
from transformer_jax.serving.worker import Worker
from transformer_jax.text.sources import TAB
from transformer_jax.use.loading import NO_OVERRIDES, load_model

log = logging.getLogger(__name__)
NAME = re.compile(r"[\w.-]+|\[[0-9A-Fa-f:.]+\]")  # of a host, or its IPv6 address


def serve(
    workdir: str,
    *,
    checkpoint: str,
    host: str,
    port: int,
    allow_host: Sequence[str] | None = None,
    overrides: Mapping[str, Any] = NO_OVERRIDES,
) -> None:
    """Serves a run's model until SIGTERM or SIGINT; then it answers what has arrived, and ends.

    Args:
      host: the address to listen on; 127.0.0.1 is reached from this machine only.
      port: 0: a free one, which is logged.
      allow_host: names under which clients know the server, beside `host` and localhost.
      workdir, checkpoint, overrides: see `load_model`.

    Raises:
      UserError: a package is missing, there is no run or no such checkpoint, the address cannot be
        used, or the model reads no source.
    """
    try:
        from transformer_jax.serving.app import make_app
        from transformer_jax.serving.server import listen, make_server, run_until_signal
    except ModuleNotFoundError:
        raise UserError("serve needs two packages: pip install starlette uvicorn.") from None
    names = _names(host, allow_host or ())
    with listen(host, port) as listening:
        run = Run(load_model(workdir, checkpoint, overrides=overrides).reading_text("serve"))
        sources = run.loaded.model.sources
        if not sources:
            raise UserError(
                f"{workdir} is a language model: serve answers a source. Use translate, which "
                "writes its texts."
            )
        limits = Limits()
        model = model_of(run)
        data, to = run.config.data, run.config.decode.to
        spoken = [code(one) for one in data.targets[:1] if to is None]
        line = " ".join([*spoken, TAB.join(["a"] * sources)])
        warm = Asked([line], 1, bool(model.layers), model.layers)
        answer_all(run, [warm])  # compiles, so that the first request does not wait for it
        about = {
            "checkpoint": run.checkpoint,
            **dict(zip(("source_language", "target_language"), data.between(to=to), strict=True)),
            **model._asdict(),
            "limits": limits._asdict(),
        }
        allocator.collect_as_usual()
        worker = Worker(partial(answer_all, run), limits.requests)
        server = make_server(make_app(worker, about, model, limits, names))
        name = f"[{host}]" if ":" in host else host
        log.info("http://%s:%d/ (Ctrl-C ends it)", name, listening.getsockname()[1])
        try:
            run_until_signal(server, listening)
        finally:
            worker.stop()
    log.info("ended after %d requests in %d groups", worker.requests, worker.groups)


def _names(host: str, others: Sequence[str]) -> set[str]:
    for name in others:
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"--allow_host={name} is not the name of a host: give it without http://, port "
                "and path."
            )
    return {name.lower() for name in (host, *others)}

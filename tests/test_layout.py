"""The order of the code (CONTRIBUTING.md): imports, sizes, docstrings, the tree in docs/tour.md."""

import ast
import fnmatch
import functools
import graphlib
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests.fixtures.tiny import SIZES
from tests.model.configs import CONFIGS
from transformer_jax.__main__ import COMMANDS
from transformer_jax.config.schema import KEYS
from transformer_jax.model.outputs.auxiliary import AUXILIARY_LOSSES
from transformer_jax.model.outputs.objectives import OBJECTIVES, TRANSLATION

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "transformer_jax"
MODULES = sorted(PACKAGE.rglob("*.py"))
SCRIPTS = sorted(
    path for name in ("configs", "experiments") for path in (ROOT / name).rglob("*.py")
)
CONFIGS_FILE = "tests/model/configs.py"
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
BENCHMARKS = sorted((ROOT / "benchmarks").rglob("*.py"))

# Modules at the package's top level that every part may import; they import only one another.
SHARED = {"__version__", "allocator", "compilation", "errors", "files", "kinds"}
# What each part may import beside itself and SHARED: folders of the package, or modules of one.
# Training, decoding and evaluation do not know each other: commands combine them.
COMMON = {"config", "text", "model", "parallel", "runs"}
USE = {*COMMON, "training", "decoding", "evaluation", "reporting"}
MAY_IMPORT = {
    "config": set(),
    "text": {"config"},
    "model": {"config", "text"},
    "parallel": {"config", "text", "model"},
    "runs": {"config", "parallel"},  # it stores pytrees, whatever model they belong to
    "training": {*COMMON, "decoding.candidates"},  # an objective may draw translations
    "decoding": COMMON,
    "evaluation": COMMON,
    "interop": {"config", "text", "model"},
    "reporting": set(),
    "use": USE,
    "tables": {*COMMON, "training", "reporting", "use.command_line", "use.environment"},
    "api": {*COMMON, "decoding", "evaluation", "reporting", "use"},
    "serving": {*COMMON, "decoding", "evaluation", "api"},
    "commands": {*USE, "interop", "use", "api", "serving"},
    "__init__": {"api"},
    "__main__": {"config", "parallel", "use", "commands", "runs.run_folder"},
}

# Beside the commands' own functions: parts, or modules of one.
EXPERIMENTS_MAY_IMPORT = {"config", "model", "reporting", "tables", "api"}
EXPERIMENTS_MAY_IMPORT |= {"commands.attention", "use.command_line", "use.loading"}
EXPERIMENTS_MAY_IMPORT |= {"evaluation.alignment", "evaluation.attention", "evaluation.bleu"}
EXPERIMENTS_MAY_IMPORT |= {"evaluation.head_importance", "runs.metrics", "runs.run_folder"}
EXPERIMENTS_MAY_IMPORT |= {"evaluation.learned_gates", "training.optimizer"}
EXPERIMENTS_MAY_IMPORT |= {"text.batches", "text.built_in_corpus", "text.hmm_aligner"}
EXPERIMENTS_MAY_IMPORT |= {"text.lines", "text.vocabulary", "text.words"}

NEVER_IMPORTED = {"tensorflow", "torch"}  # neither is needed to install, train or test
# They run code that is in the data.
NEVER_IMPORTED |= {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}

LARGEST_FILE = 400
LARGEST_FUNCTION = 60
SMALL_METHOD = 6
LITERAL = ast.Dict | ast.List | ast.Set | ast.Tuple


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def for_each(paths: Iterable[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """Makes one test of a test of one file; its failure names every file that fails."""

    def decorated(test: Callable[[Path], None]) -> Callable[[], None]:
        def of_all() -> None:
            failures = []
            for path in paths:
                try:
                    test(path)
                except AssertionError as error:
                    failures.append(f"{name_of(path)}: {error}")
            assert not failures, "\n".join(failures)

        of_all.__doc__ = test.__doc__
        return of_all

    return decorated


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """A file's syntax, the module first. Every file is parsed once for all tests."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def imports(path: Path) -> Iterator[str]:
    """Every dotted name that a file imports, inside functions too, with the imported name."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno}: imports here are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def forbidden_imports(path: Path, allowed: set[str]) -> list[str]:
    """What a file imports of the package that is neither in these parts or modules nor shared."""
    prefixes = tuple(f"transformer_jax.{name}." for name in allowed | SHARED)
    internal = [name for name in imports(path) if name.startswith("transformer_jax.")]
    return [name for name in internal if not f"{name}.".startswith(prefixes)]


def test_these_tests_find_the_files():
    assert {"__main__.py", "schema.py"} <= {path.name for path in MODULES}
    assert {"wmt14.py", "demo.py"} <= {path.name for path in SCRIPTS}
    assert "train_speed.py" in {path.name for path in BENCHMARKS}
    parts = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in MODULES}
    assert parts == {*MAY_IMPORT, *SHARED, "__init__"} - {"__version__"}


def test_every_folder_of_the_package_is_installed():
    assert {path.parent for path in MODULES if path.name == "__init__.py"} == {
        path.parent for path in MODULES
    }


def test_presets_and_experiments_are_installed_too():
    shipped = {f"transformer_jax.shipped.{name}": name for name in ("configs", "experiments")}
    assert SETUPTOOLS["package-dir"] == shipped
    packages = {module_of(path) for path in MODULES if path.name == "__init__.py"}
    packages |= shipped.keys()
    packages |= {f"transformer_jax.shipped.{module_of(path.parent)}" for path in SCRIPTS}
    assert sorted(SETUPTOOLS["packages"]) == sorted(packages)


@for_each(MODULES)
def test_imports_go_one_way(path):
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    allowed = {part, *MAY_IMPORT.get(part, ())}
    assert not forbidden_imports(path, allowed), f"{name_of(path)} must not import these"


def test_what_tables_share_with_commands_imports_no_part():
    assert not forbidden_imports(PACKAGE / "use" / "command_line.py", {"config", "use.environment"})
    assert not forbidden_imports(PACKAGE / "use" / "environment.py", set())


SEARCH = {"text", "model.interfaces"}
SEARCH |= {f"decoding.{name}" for name in ("exclusions", "penalties", "state")}


@pytest.mark.parametrize(
    ("name", "more"),
    [("search", set()), ("sampling", {"decoding.search", "model.layers.dropout"})],  # Rules, a hash
)
def test_search_and_sampling_know_nothing_of_the_transformer(name, more):
    assert not forbidden_imports(PACKAGE / "decoding" / f"{name}.py", SEARCH | more)


# The model ---------------------------------------------------------------------------------------


def test_equation_1_is_one_page_that_opens_with_the_formula():
    text = (PACKAGE / "model" / "attention" / "multi_head.py").read_text(encoding="utf-8")
    lines = text.count("\n")
    assert lines <= 110, f"{lines} lines; another part of attention has a file of its own"
    assert text.startswith('"""Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V')


@for_each(sorted((PACKAGE / "model").rglob("*.py")))
def test_functions_of_the_model_take_at_most_five_arguments(path):
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef):
            names = [a.arg for a in node.args.posonlyargs + node.args.args]
            given = [name for name in names if name not in ("self", "cls")]
            assert len(given) <= 5, f"{node.name} takes {len(given)} arguments"


# Functions that take any number of arguments of one kind: names of axes, sizes, trees.
VARIADIC = {"constrain", "map", "named", "reshape", "PartitionSpec", "zip", "platform_dependent"}


@for_each(sorted((PACKAGE / "model").rglob("*.py")))
def test_nothing_of_the_model_is_unpacked_into_positional_arguments(path):
    for node in nodes(path):
        if isinstance(node, ast.Call) and any(isinstance(a, ast.Starred) for a in node.args):
            name = ast.unparse(node.func).rpartition(".")[2]
            assert name in VARIADIC, f"line {node.lineno}: {ast.unparse(node)}"


QUESTION = re.compile(
    r"isinstance\([^)]*[mM]odel|\.(encoder|decoder|norm|positions|score|cross_score|window"
    r"|attention_memory) *(==|!=|in |not )|max_positions *[<>]"
)


@for_each([p for p in MODULES if p.relative_to(PACKAGE).parts[0] not in ("model", "config")])
def test_only_the_model_asks_what_the_model_is(path):
    """Other parts ask the model, for example `model.longest()`."""
    found = [line for line in path.read_text(encoding="utf-8").split("\n") if QUESTION.search(line)]
    assert not found


# Keys of the model whose value is an entry of a registry.
CHOICES = [key for name, key in KEYS.items() if name.startswith("model.") and key.choices_of]


def test_every_entry_of_a_registry_is_in_the_harness():
    """tests/model/test_harness.py runs over the list, so a new entry is tested as a model."""
    used: dict[str, set[str]] = {}
    for key in CHOICES:
        name = key.name.partition(".")[2]
        values = {changes.get(name, key.default) for changes in CONFIGS.values()}
        used.setdefault(key.choices_of, set()).update(values)
    assert len(used) >= 5
    missing = [
        f"add a line with {key.name}={name!r} to {CONFIGS_FILE}"
        for key in CHOICES
        for name in sorted(set(key.valid_choices()) - used[key.choices_of])
    ]
    assert not missing, "\n".join(missing)


def test_every_entry_of_a_registry_has_a_meaning_and_a_test_by_hand():
    """The harness compares a part with itself; only a test of its own knows what it should be.

    Such a test has the entry's name as a string. Defaults need none: test_torch_parity.py has them.
    """
    folder = ROOT / "tests" / "model"
    references = ROOT / "tests" / "fixtures" / "references.py"
    own = {*folder.glob("*.py"), references} - {folder / "configs.py", folder / "test_harness.py"}
    tests = " ".join(path.read_text(encoding="utf-8") for path in own)
    wrong = []
    for key in CHOICES:
        for name in key.valid_choices():
            meanings = " ".join(one.meaning for one in CHOICES if name in one.valid_choices())
            if not re.search(rf"\b{name}\b", meanings):
                wrong.append(f"say what {name!r} is in the meaning of {key.name}, config/model.py")
            if name != key.default and f'"{name}"' not in tests:
                wrong.append(
                    f"add a NumPy reference of {key.name}={name!r} to {folder} or {references}"
                )
    assert not wrong, "\n".join(wrong)


def test_every_objective_has_a_test_and_a_mesh():
    tests = {path.stem for path in (ROOT / "tests" / "model").glob("*.py")}
    mesh = (ROOT / "tests" / "parallel" / "test_sharding.py").read_text(encoding="utf-8")
    names: dict[str, list[str]] = {}  # of the objectives that a file has
    for name in OBJECTIVES.keys() - {TRANSLATION}:
        names.setdefault(OBJECTIVES[name].sums.__module__.rpartition(".")[2], []).append(name)
    for own, objectives in names.items():
        some = " or ".join(map(repr, objectives))
        in_mesh = any(f'"{name}"' in mesh for name in objectives)
        assert in_mesh, f"add {some} to WITH_OTHER_PARTS of test_sharding.py"
        assert f"test_{own}" in tests, f"write tests/model/test_{own}.py"


# Their tests are elsewhere: dropout in training, types in test_products.py and on a GPU, what is
# written at once in test_ctc.py and test_mask_predict.py.
NOT_IN_THE_HARNESS = {"dropout", "dtype", "residual_dtype", "watched_layer", "parallel"}


def test_every_key_of_the_model_has_another_value_in_the_harness():
    for key in KEYS.values():
        section, _, name = key.name.rpartition(".")
        if section == "model" and name not in NOT_IN_THE_HARNESS:
            values = {{**SIZES, **changes}.get(name, key.default) for changes in CONFIGS.values()}
            assert values != {key.default}, f"add a line with {key.name} to {CONFIGS_FILE}"


def test_every_auxiliary_loss_has_a_key_for_its_weight():
    assert {f"train.{name}_weight" for name in AUXILIARY_LOSSES} <= KEYS.keys()


def test_an_installed_package_has_every_file():
    patterns = SETUPTOOLS["package-data"]
    data = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    folders = {name: Path(*name.split(".")[1:]) for name in patterns}
    known = {str(folders[name] / one) for name, every in patterns.items() for one in every}
    assert {file for file in data if not any(fnmatch.fnmatch(file, one) for one in known)} == set()
    assert "text/built_in_train.tsv.gz" in data


def test_there_are_no_import_cycles():
    modules = {module_of(path): path for path in MODULES}
    graph = {
        module: {
            next(name for name in (full, full.rpartition(".")[0]) if name in modules)
            for full in imports(path)
            if full.rpartition(".")[0] in modules or full in modules
        }
        for module, path in modules.items()
    }
    assert "transformer_jax.config.schema" in graph["transformer_jax.config.checks"]
    tuple(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


@for_each([p for p in SCRIPTS if "experiments" in p.relative_to(ROOT).parts])
def test_experiments_use_the_commands_and_no_insides(path):
    commands = {
        command.target.removeprefix("transformer_jax.").replace(":", ".")
        for command in COMMANDS.values()
    }
    inside = forbidden_imports(path, commands | EXPERIMENTS_MAY_IMPORT)
    assert not inside, f"{name_of(path)} reaches into these"


@for_each([*MODULES, *SCRIPTS])
def test_nothing_imports_tensorflow_torch_or_unpickles(path):
    assert not NEVER_IMPORTED & {name.split(".")[0] for name in imports(path)}
    assert "allow_pickle=True" not in path.read_text(encoding="utf-8").replace(" ", "")


@for_each([*MODULES, *SCRIPTS, *BENCHMARKS])
def test_files_and_functions_stay_small(path):
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= LARGEST_FILE, f"{name_of(path)} has {lines} lines: make it two files"
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef) and node.end_lineno:
            size = node.end_lineno - node.lineno + 1
            assert size <= LARGEST_FUNCTION, f"{node.name} has {size} lines"


@for_each([*MODULES, *SCRIPTS, *BENCHMARKS])
def test_no_literal_is_unpacked_into_another(path):
    """`{**{"a": 1, "b": 2}, "c": 3}` is `{"a": 1, "b": 2, "c": 3}`."""
    unpacked = [node.value for node in nodes(path) if isinstance(node, ast.Starred)]
    for node in nodes(path):
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            unpacked += [value for key, value in pairs if key is None]
    assert not [node.lineno for node in unpacked if isinstance(node, LITERAL)]


def says_what(decorator: ast.expr) -> bool:
    """Whether a decorator describes its function: @construction("verb-final clauses")."""
    arguments = decorator.args if isinstance(decorator, ast.Call) else []
    return any(isinstance(a, ast.Constant) and " " in str(a.value) for a in arguments)


@for_each(MODULES)
def test_what_is_public_has_a_docstring(path):
    tree = nodes(path)[0]
    assert isinstance(tree, ast.Module)
    bare = [] if ast.get_docstring(tree) else ["the module"]
    for owner in (tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))):
        for node in owner.body:
            if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
                continue
            if isinstance(owner, ast.ClassDef):  # the class says what its small methods do
                assert node.end_lineno is not None
                if node.end_lineno - node.lineno < SMALL_METHOD or node.name == "setup":
                    continue
            if not ast.get_docstring(node) and not any(map(says_what, node.decorator_list)):
                bare.append(f"{node.name}, line {node.lineno}")
    assert not bare


# The repository --------------------------------------------------------------------------------


def repository_files() -> list[str]:
    """The files that git tracks, or would track after `git add .`."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return sorted(name for name in done.stdout.splitlines() if (ROOT / name).is_file())


def test_no_file_names_a_path_of_one_machine():
    # No one-line pattern of its own: this file is looked at too.
    machine_path = re.compile(r"(?<![\w.])/" + "(work|farm|root)" + "/")
    files = repository_files()
    assert "pyproject.toml" in files
    found = []
    for name in files:
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a fixture
        found += [
            f"{name}:{n}" for n, line in enumerate(text.split("\n"), 1) if machine_path.search(line)
        ]
    assert not found


def test_constraints_are_names_and_versions_only():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [line for line in lines if not line.startswith("#")]
    version = re.compile(r'[\w.-]+==[\w.]+(; python_version (<|>=) "3\.\d+")?')
    assert [line for line in pinned if not version.fullmatch(line)] == []
    names = {line.split("==")[0].lower() for line in pinned}
    assert {"jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "pytest"} <= names


def tree_of_the_tour() -> list[str]:
    """The paths, or patterns of paths, of the trees in docs/tour.md.

    A tree is a fenced block. A line is an indented name, or several with commas, then two spaces
    or more and a phrase; a folder ends in "/". A name may be a pattern: constructions_*.py.
    """
    tour = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
    trees = re.findall(r"^```\n(.*?)^```", tour, re.MULTILINE | re.DOTALL)
    assert trees, "docs/tour.md has no fenced tree"
    paths: list[str] = []
    above: list[tuple[int, str]] = []  # the folders around a line, with their indentations
    for line in "".join(trees).splitlines():
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        above = [(depth, folder) for depth, folder in above if depth < indent]
        prefix = above[-1][1] if above else ""
        names = re.split(r"\s{2,}", line.strip())[0].split(", ")
        paths += [prefix + name for name in names]
        if names[-1].endswith("/"):
            above.append((indent, prefix + names[-1]))
    return paths


def test_the_tour_names_what_exists():
    missing = [path for path in tree_of_the_tour() if not list(ROOT.glob(path.rstrip("/")))]
    assert not missing, "docs/tour.md has files that do not exist"


def test_the_tour_names_every_file_of_the_package():
    files = repository_files()
    folders = {name.split("/")[0] + "/" for name in files if "/" in name}
    wanted = folders | {name for name in files if "/" not in name} - {"README.md"}
    wanted |= {f"{name_of(path.parent)}/" for path in MODULES}
    wanted |= {name_of(path) for path in MODULES if path.name != "__init__.py"}
    listed = tree_of_the_tour()
    unnamed = [
        path
        for path in sorted(wanted)
        if not path.startswith(".") and not any(fnmatch.fnmatch(path, name) for name in listed)
    ]
    assert not unnamed, "add a line for these to docs/tour.md"

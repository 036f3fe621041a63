"""The house's order (CONTRIBUTING.md): imports, sizes, docstrings, the README's tree."""

import ast
import fnmatch
import graphlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from transformer_jax.__main__ import COMMANDS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "transformer_jax"
MODULES = sorted(PACKAGE.rglob("*.py"))
SCRIPTS = sorted(
    path for name in ("configs", "experiments") for path in (ROOT / name).rglob("*.py")
)

# Corpus -> vocabulary -> batches -> model -> loss -> step -> checkpoint -> search -> BLEU: each
# part may import those before it. The report's tools import no part: they are given numbers.
MAY_IMPORT = {
    "text": set(),
    "model": {"text"},
    "training": {"text", "model"},
    "decoding": {"text", "model", "training"},
    "evaluation": {"text", "model", "training", "decoding", "reporting"},
    "reporting": set(),
    "bench": {"text", "training", "reporting"},
}
PUTS_PARTS_TOGETHER = {"training/loop.py", "bench/command.py"}
# Of the package's own top level.
SHARED = {
    "allocator",
    "compilation",
    "config",
    "config_checks",
    "config_files",
    "errors",
    "files",
    "processes",
}

# Beside the commands' own functions: parts, or modules of one.
EXPERIMENTS_MAY_IMPORT = {
    *("config", "config_files", "command_line", "errors", "files", "model", "reporting", "bench"),
    *("training.optimizer", "evaluation.attention", "evaluation.alignment"),
    *("decoding.translate", "text.grammar"),
}

NEVER_IMPORTED = {
    *("tensorflow", "torch"),  # neither is needed to install, train or test
    *("pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"),  # code, not data
}

LARGEST_FILE = 450
LARGEST_FUNCTION = 70
SMALL_METHOD = 6


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> Iterator[str]:
    """Every dotted name that a file imports, inside functions too; names, where it takes them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno}: imports here are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def internal_imports(path: Path) -> Iterator[str]:
    """What a file imports of the package, such as "text.vocabulary.EOS"."""
    for name in imports(path):
        if name.startswith("transformer_jax."):
            yield name.removeprefix("transformer_jax.")


def test_there_is_something_to_look_at():
    assert {"__main__.py", "config.py"} <= {path.name for path in MODULES}
    assert {path.parent.name for path in MODULES} >= MAY_IMPORT.keys()
    assert {"wmt14.py", "demo.py"} <= {path.name for path in SCRIPTS}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_go_one_way(path):
    part, *inside = path.relative_to(PACKAGE).parts
    if not inside or str(path.relative_to(PACKAGE)) in PUTS_PARTS_TOGETHER:
        return  # of the top level, or a part's exception
    allowed = {part, *MAY_IMPORT[part], *SHARED, "__version__"}
    against = [name for name in internal_imports(path) if name.split(".")[0] not in allowed]
    assert not against, f"{name_of(path)} must not know of these"


def test_what_every_part_shares_knows_of_none():
    for module in SHARED:
        used = {name.split(".")[0] for name in internal_imports(PACKAGE / f"{module}.py")}
        assert used <= SHARED, module


def test_search_knows_nothing_of_the_transformer():
    used = {name.split(".")[0] for name in internal_imports(PACKAGE / "decoding" / "search.py")}
    assert used <= {"text", "errors", "files"}


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


@pytest.mark.parametrize(
    "path", [p for p in SCRIPTS if p.parent.name == "experiments"] or [None], ids=str
)
def test_experiments_use_the_commands_and_no_insides(path):
    if path is None:
        return
    commands = {
        command.target.removeprefix("transformer_jax.").replace(":", ".")
        for command in COMMANDS.values()
    }
    allowed = tuple(f"{name}." for name in commands | EXPERIMENTS_MAY_IMPORT)
    inside = [name for name in internal_imports(path) if not f"{name}.".startswith(allowed)]
    assert not inside, f"{name_of(path)} reaches into these"


@pytest.mark.parametrize("path", [*MODULES, *SCRIPTS], ids=name_of)
def test_nothing_imports_tensorflow_torch_or_unpickles(path):
    assert not NEVER_IMPORTED & {name.split(".")[0] for name in imports(path)}
    assert "allow_pickle=True" not in path.read_text(encoding="utf-8").replace(" ", "")


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_files_and_functions_stay_small(path):
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= LARGEST_FILE
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.end_lineno:
            size = node.end_lineno - node.lineno + 1
            assert size <= LARGEST_FUNCTION, f"{node.name} has {size} lines"


def says_what(decorator: ast.expr) -> bool:
    """Whether a decorator has words for its function: @construction("verb-final clauses")."""
    arguments = decorator.args if isinstance(decorator, ast.Call) else []
    return any(isinstance(a, ast.Constant) and " " in str(a.value) for a in arguments)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_what_is_public_has_a_docstring(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
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
    """What git holds, or would on `git add .`."""
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


def tree_of_readme() -> list[str]:
    """The paths, or patterns of paths, of the README's tree.

    The tree is the first fenced block with a line that starts with "transformer_jax/". A line is an
    indented name, or several with commas, then two spaces or more and a phrase; a folder ends in
    "/". A name may be a pattern: lexicon_*.py.
    """
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    trees = [b for b in blocks if re.search(r"^transformer_jax/", b, re.MULTILINE)]
    assert trees, "README.md has no fenced tree with a line that starts with transformer_jax/"
    paths: list[str] = []
    above: list[tuple[int, str]] = []  # the folders around a line, with their indentations
    for line in trees[0].splitlines():
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


def test_the_readme_s_tree_names_what_there_is():
    missing = [path for path in tree_of_readme() if not list(ROOT.glob(path.rstrip("/")))]
    assert not missing


def test_the_readme_s_tree_names_all_there_is():
    files = repository_files()
    folders = {name.split("/")[0] + "/" for name in files if "/" in name}
    wanted = folders | {name for name in files if "/" not in name} - {"README.md"}
    wanted |= {f"{name_of(path.parent)}/" for path in MODULES}
    wanted |= {name_of(path) for path in MODULES if path.name != "__init__.py"}
    listed = tree_of_readme()
    unnamed = [
        path
        for path in sorted(wanted)
        if not path.startswith(".") and not any(fnmatch.fnmatch(path, name) for name in listed)
    ]
    assert not unnamed

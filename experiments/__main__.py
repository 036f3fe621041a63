"""Lists the experiments: `python -m experiments`."""

import ast
from pathlib import Path


def listing() -> str:
    """One line per experiment, with its command and the first line of its docstring."""
    in_checkout = Path("experiments", "__main__.py").is_file()
    start = "python -m experiments." if in_checkout else "transformer-jax experiment "
    lines = []
    for path in sorted(Path(__file__).parent.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        tests = [ast.unparse(node.test) for node in tree.body if isinstance(node, ast.If)]
        runs = "__name__ == '__main__'" in tests
        about = (ast.get_docstring(tree) or "").split("\n")[0]
        if runs and not path.name.startswith("_"):
            lines.append(f"{start}{path.stem:<18} {about}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(listing())

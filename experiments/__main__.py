"""Lists the experiments: `python -m experiments`."""

import ast
from pathlib import Path


def listing() -> str:
    """One line per experiment, with its command and the first line of its docstring."""
    in_checkout = Path("experiments", "__main__.py").is_file()
    start = "python -m experiments." if in_checkout else "transformer-jax experiment "
    lines = []
    here = Path(__file__).parent
    for path in sorted([*here.glob("[!_]*.py"), *here.glob("*/__main__.py")]):
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError) as error:  # it is being written
            lines.append(f"{path} is not Python yet: {error}")
            continue
        # A command has a guard, or calls `main(EXPERIMENT)` without one as in the README.
        is_command = any(
            (isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'")
            or (isinstance(node, ast.Expr) and "main(" in ast.unparse(node))
            for node in tree.body
        )
        name = path.stem
        if name == "__main__":  # of a package, which its __init__.py describes
            name = path.parent.name
            tree = ast.parse(path.with_name("__init__.py").read_text(encoding="utf-8"))
        about = (ast.get_docstring(tree) or "").split("\n")[0]
        if is_command:
            lines.append(f"{start}{name:<18} {about}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(listing())

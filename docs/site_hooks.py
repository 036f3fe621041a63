"""What `make docs` does before mkdocs reads the pages.

README.md, CONTRIBUTING.md and the notebook become pages of the site. Their links to docs/ lead to
its pages, and links to other files of the repository, which the site does not have, become plain
text.
"""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md"}
NOTEBOOKS = {f"{name}.ipynb": f"{name}.md" for name in ("the_paper", "attention_around_attention")}
EQUATION = re.compile(r"\$\$(?P<block>.+?)\$\$|\$(?P<inline>[^$\n]+)\$", re.S)
KEY = re.compile(r'^\| <a id="(?P<name>[^"]+)"></a>(?P<text>.*) \|$', re.M)
PICTURE = re.compile(r"^## (?P<heading>.+)$|!\[png\]\(", re.M)
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)#]+)(?P<anchor>#[^)]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that are kept outside docs/."""
    from mkdocs.structure.files import File

    for source, page in PAGES.items():
        text = (ROOT / source).read_text()
        files.append(File.generated(config, page, content=text.replace("](docs/", "](")))
    for source, page in NOTEBOOKS.items():
        text, pictures = notebook_page(ROOT / "docs" / source)
        files.append(File.generated(config, page, content=text))
        for name, picture in pictures.items():
            files.append(File.generated(config, name, content=picture))
    return files


def on_post_build(config: Any) -> None:
    """Makes each key of the config a result of its own for the site's search."""
    file = Path(config.site_dir, "search", "search_index.json")
    index = json.loads(file.read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "keys.md").read_text(encoding="utf-8")
    index["docs"] += [
        {"location": f"keys/#{key['name']}", "title": key["name"], "text": key["text"]}
        for key in KEY.finditer(page)
    ]
    file.write_text(json.dumps(index, separators=(",", ":")), encoding="utf-8")


def notebook_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook with its stored outputs as Markdown, its equations as MathML, and its pictures."""
    import nbconvert
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = EQUATION.sub(_as_mathml, cell.source)
    names = {"unique_key": path.stem}  # of its pictures
    text, resources = nbconvert.MarkdownExporter().from_notebook_node(notebook, resources=names)
    return with_alternative_texts(text), resources["outputs"]


def with_alternative_texts(text: str) -> str:
    """A notebook's page whose pictures are described by the heading that they stand below."""
    heading = ""

    def described(found: re.Match[str]) -> str:
        nonlocal heading
        heading = found["heading"] or heading
        return found[0] if found["heading"] else f"![Picture: {heading}]("

    return PICTURE.sub(described, text)


def _as_mathml(found: re.Match[str]) -> str:
    from latex2mathml.converter import convert

    display = "block" if found["block"] else "inline"
    return convert(found[display], display=display)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """The page with links that work on the site."""
    folder = Path(page.file.src_uri).parent

    def linked(found: re.Match[str]) -> str:
        target, text = found["target"], found["text"]
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        name = target.removeprefix("../")
        page_of = PAGES | NOTEBOOKS
        if name in page_of:
            return f"[{text}]({page_of[name]}{found['anchor'] or ''})"
        there = folder / target
        known = files.get_file_from_path(there.as_posix())
        return found[0] if known is not None or (ROOT / "docs" / there).exists() else text

    return LINK.sub(linked, markdown)

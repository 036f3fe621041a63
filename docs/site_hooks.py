"""What `make docs` does before mkdocs reads the pages.

README.md and CONTRIBUTING.md become pages of the site. Their links to docs/ lead to its pages, and
links to other files of the repository, which the site does not have, become plain text.
"""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md"}
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)#]+)(?P<anchor>#[^)]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that are kept outside docs/."""
    from mkdocs.structure.files import File

    for source, page in PAGES.items():
        text = (ROOT / source).read_text()
        files.append(File.generated(config, page, content=text.replace("](docs/", "](")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """The page with links that work on the site."""
    folder = Path(page.file.src_uri).parent

    def linked(found: re.Match[str]) -> str:
        target, text = found["target"], found["text"]
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        name = target.removeprefix("../")
        if name in PAGES:
            return f"[{text}]({PAGES[name]}{found['anchor'] or ''})"
        there = folder / target
        known = files.get_file_from_path(there.as_posix())
        return found[0] if known is not None or (ROOT / "docs" / there).exists() else text

    return LINK.sub(linked, markdown)

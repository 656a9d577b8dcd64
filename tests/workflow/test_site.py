"""The site of the docs: what is made from the code, and a strict build."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from scripts.site import (
    commands_page,
    notebook_page,
    on_page_content,
    on_page_markdown,
    tables_page,
)
from tests.commands import ROOT, environment
from workflow.cli import BY_HAND
from workflow.outputs import Table
from workflow.stages import STAGES

pytestmark = pytest.mark.system


def test_every_command_is_on_its_page() -> None:
    page = commands_page()
    for name in (*BY_HAND, "export trace", "import chakra", "fabric serve"):
        assert f"### railx {name}\n" in page
    # The longest line has the names of all topologies.
    assert max(map(len, page.splitlines())) < 1_500


def test_every_column_of_every_table_is_on_its_page() -> None:
    page = tables_page()
    for name, stage in STAGES.items():
        for key, table in stage.outputs.items():
            if isinstance(table, Table):
                section = page.split(f"### {name}.{key}\n", 1)[1].split("###", 1)[0]
                assert re.findall(r"^\| `(\w+)`", section, re.MULTILINE) == [
                    *table.declared(),
                    *table.optional,
                ]
    assert "| `latency_ns` | number | ns |" in page
    assert "| `usd_per_injection_gb_s` | number | USD per 10^9 byte/s |" in page


def test_what_is_no_page_is_named() -> None:
    assert on_page_markdown("see [it](../conf/a.yaml) and [b](b.md)") == (
        "see it (`conf/a.yaml`) and [b](b.md)"
    )
    below = SimpleNamespace(file=SimpleNamespace(src_uri="notebooks/a.md"))
    text = "see [it](../../conf/a.yaml), [b](../b.md) and ![c](c.png)"
    assert on_page_markdown(text, page=below) == (
        "see it (`conf/a.yaml`), [b](../b.md) and ![c](c.png)"
    )
    assert on_page_content("as :func:<code>~a.b</code> <code>c</code>") == (
        "as <code>a.b</code> <code>c</code>"
    )


def test_a_notebook_is_a_page_with_what_it_stores() -> None:
    image = base64.b64encode(b"drawn").decode()
    outputs = [
        {"output_type": "stream", "text": ["1\n", "2\n"]},
        {"output_type": "execute_result", "data": {"text/plain": "3"}},
        {"output_type": "display_data", "data": {"image/png": f"{image}\n"}},
    ]
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "words"]},
        {"cell_type": "code", "source": "print(1)", "outputs": outputs},
        {"cell_type": "code", "source": "x = 1", "outputs": []},
    ]
    page, images = notebook_page("a", {"cells": cells})
    assert images == {"a_1.png": b"drawn"}
    assert page == (
        "# Title\nwords\n\n```python\nprint(1)\n```\n\n```text\n1\n2\n```\n\n"
        "```text\n3\n```\n\n![What the cell above draws](a_1.png)\n\n"
        "```python\nx = 1\n```\n\nThis page is a notebook: [a.ipynb](a.ipynb).\n"
    )


def test_every_page_is_in_the_list() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r"[\w/]+\.md", yaml.safe_dump(yaml.safe_load(text)["nav"])))
    docs = ROOT / "docs"
    notebooks = {f"notebooks/{path.stem}.md" for path in docs.glob("notebooks/*.ipynb")}
    assert len(notebooks) == 2
    generated = {"commands.md", "reference.md", "tables.md"}
    pages = {str(path.relative_to(docs)) for path in docs.rglob("*.md")}
    assert listed == {*generated, *pages, *notebooks}


def _built(site: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The site as `make site` builds it, in another folder."""
    pytest.importorskip("mkdocs")
    recipe = re.search(r"-m (mkdocs build.*)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert recipe is not None
    return subprocess.run(
        [sys.executable, "-m", *recipe.group(1).split(), "--site-dir", str(site), *options],
        cwd=ROOT,
        env=environment(NO_MKDOCS_2_WARNING="1"),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_the_site_is_built_with_all_links_checked_and_fetches_nothing(tmp_path: Path) -> None:
    done = _built(tmp_path / "site")
    assert done.returncode == 0, done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 15
    study = tmp_path / "site" / "notebooks" / "what_if_network.html"
    assert "what_if_network_1.png" in study.read_text()
    assert (study.parent / "what_if_network_1.png").is_file()
    for page in pages:
        loaded = re.findall(r'(?:src|<link[^>]*href)="(https?://[^"]*)', page.read_text())
        assert not loaded, page.name


@pytest.mark.slow
def test_a_link_to_nowhere_ends_the_build(tmp_path: Path) -> None:
    """What --quiet would keep from being counted."""
    docs = tmp_path / "docs"
    shutil.copytree(ROOT / "docs", docs)
    with (docs / "howto.md").open("a", encoding="utf-8") as page:
        page.write("\n[nothing](nothing.md)\n")
    config = tmp_path / "mkdocs.yml"
    hooks = [str(ROOT / "scripts" / "site.py")]
    own = {"INHERIT": str(ROOT / "mkdocs.yml"), "docs_dir": str(docs), "hooks": hooks}
    config.write_text(yaml.safe_dump(own), encoding="utf-8")
    done = _built(tmp_path / "site", "--config-file", str(config))
    assert done.returncode == 1
    assert "nothing.md" in done.stderr
    assert "Aborted with 1 warnings" in done.stdout + done.stderr

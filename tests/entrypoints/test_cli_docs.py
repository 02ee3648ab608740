import importlib.util
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "generate_cli_docs.py"


def test_the_page_is_up_to_date():
    spec = importlib.util.spec_from_file_location("generate_cli_docs", TOOL)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.PAGE.read_text(encoding="utf-8") == tool.page(), "run python tools/generate_cli_docs.py"

"""The scripts of tools/train/demo that need nothing but Python: prompts for training a drafter, text for measuring code loss."""
import json
import pathlib
import subprocess
import sys

DEMO = pathlib.Path(__file__).resolve().parents[2] / "tools" / "train" / "demo"


def script(name, *arguments):
    return subprocess.run([sys.executable, str(DEMO / name), *map(str, arguments)], capture_output=True, text=True, check=True).stdout


def questions(text):
    return [json.loads(line)["messages"][0]["content"] for line in text.splitlines()]


def test_prompts_are_distinct_and_held_out_ones_are_not_among_them(tmp_path):
    asked = questions(script("questions.py", 6000, "--held-out", tmp_path / "held.json"))
    held = json.loads((tmp_path / "held.json").read_text())
    assert len(set(asked)) == len(asked) > 3000
    assert not {p["messages"][0]["content"] for p in held} & set(asked)
    assert sum(p["kind"] == "own words" for p in held) == 12 and len(held) > 12
    assert not any("A baker makes 24 loaves" in q or "Tell me about Portugal." in q for q in asked)  # prompts of the bench


def test_documented_functions_of_a_folder_are_asked_for(tmp_path):
    code = '"""A module."""\n\n\ndef area(width, height):\n    """Return the area of a rectangle.\n\n    More.\n    """\n    return width * height\n\n\ndef _own():\n    """Not asked for, it is private."""\n'
    (tmp_path / "shapes.py").write_text(code)
    (tmp_path / "broken.py").write_text("def (:\n")
    asked = [q for q in questions(script("questions.py", 300, "--python", tmp_path)) if "rectangle" in q]
    assert len(asked) == 1 and "Return the area of a rectangle." in asked[0] and "area" in asked[0] and "More." not in asked[0]


def test_held_out_text_is_whole_files_in_equal_shares(tmp_path):
    files = {}
    for project, n in (("a", 30), ("b", 2)):
        for i in range(n):
            files[project, i] = "".join(f"{project}{i}_{k} = {k}\n" for k in range(120))
            (tmp_path / project).mkdir(exist_ok=True)
            (tmp_path / project / f"m{i}.py").write_text(files[project, i])
    (tmp_path / "a" / "tests").mkdir()
    (tmp_path / "a" / "tests" / "t.py").write_text("# a test\n" * 200)
    (tmp_path / "a" / "short.py").write_text("x = 1\n")
    told = script("held_out.py", tmp_path / "out.txt", 20_000, ".py", tmp_path / "a", tmp_path / "b")
    text = (tmp_path / "out.txt").read_text()
    used = {k for k, v in files.items() if v.strip() + "\n\n" in text}
    assert text == "" or sum(len(files[k].strip()) + 2 for k in used) == len(text)  # nothing else, nothing cut
    assert sum(len(files[k]) for k in used if k[0] == "a") <= 10_100 and {("b", 0), ("b", 1)} <= used
    assert "a test" not in text and "2 files" in told.splitlines()[1]

"""Write the prompts that installed Python packages carry, one a line, for `stoker prompt bank build` (docs/prompts.md).

    pip install --no-deps lm-eval==0.4.13
    python packaged_prompts.py > prompts.jsonl
    stoker prompt bank build --from prompts.jsonl

Their files are read; none of their code runs. It needs PyYAML.
"""

import importlib.util
import json
import re
import sys
from pathlib import Path

import yaml

SHORTEST, LONGEST = 15, 1000  # characters of an instruction; packages hold shorter labels and longer few-shot examples too
LITERAL = re.compile(r"""\{\{\s*(?:"([^"{}]*)"|'([^'{}]*)')\s*\}\}""")
CODE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.DOTALL)


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """Tags of these files name code of the package; here they are read as plain data."""


def untagged(loader, _, node):
    return loader.construct_mapping(node, deep=True) if isinstance(node, yaml.MappingNode) else None


Loader.add_multi_constructor("!", untagged)


def mapping(path):
    try:
        found = yaml.load(path.read_bytes(), Loader)
    except yaml.YAMLError:
        return {}
    return found if isinstance(found, dict) else {}


def promptsource(folder):
    """The question of each template (its answer follows ``|||``), by data set."""
    for path in sorted((folder / "templates").rglob("templates.yaml")):
        templates = mapping(path).get("templates")
        for template in templates.values() if isinstance(templates, dict) else ():
            if isinstance(template, dict) and isinstance(template.get("jinja"), str):
                yield template["jinja"].split("|||")[0], path.parent.relative_to(folder / "templates").as_posix()


def lm_eval(folder):
    """The words of a task before and around its question; the first folder is the task."""
    for path in sorted((folder / "tasks").rglob("*.y*ml")):
        fields = [field for field in ("doc_to_text", "description") if field.encode() in path.read_bytes()]
        found = mapping(path) if fields else {}
        for field in fields:
            if isinstance(found.get(field), str):
                yield found[field], path.relative_to(folder / "tasks").parts[0]


def evals(folder):
    """The system prompt of the first sample of each set."""
    for path in sorted((folder / "registry" / "data").rglob("*.jsonl")):
        with path.open(encoding="utf-8", errors="replace") as file:
            line = file.readline()
        try:
            messages = json.loads(line).get("input")
        except (ValueError, AttributeError):
            continue
        first = messages[0] if isinstance(messages, list) and messages else None
        if isinstance(first, dict) and first.get("role") == "system" and isinstance(first.get("content"), str):
            yield first["content"], path.parent.name


READERS = {
    promptsource: "pip install --no-deps --ignore-requires-python promptsource==0.2.3",
    lm_eval: "pip install --no-deps lm-eval==0.4.13",
    evals: "pip install --no-deps evals==3.0.1.post1  # 750 MB",
}


def instruction(template):
    """The words of a template without its variables and code; None: too short, too long, or not in Latin letters."""
    text = " ".join(CODE.sub(" ", LITERAL.sub(lambda found: found[1] or found[2] or "", template)).split())
    if not SHORTEST <= len(text) <= LONGEST or sum(char.isascii() for char in text) < 0.95 * len(text):
        return None
    return text if sum(char.isalpha() for char in text) > 0.5 * len(text) and len(text.split()) >= 3 else None


def main():
    seen = set()
    for read, install in READERS.items():
        name, before = read.__name__.replace("_", "-"), len(seen)
        package = importlib.util.find_spec(read.__name__)
        if package is None or not package.submodule_search_locations:
            sys.stderr.write(f"{name} is not installed; '{install}' brings its prompts\n")
            continue
        for template, task in read(Path(package.submodule_search_locations[0])):
            text = instruction(template)
            if text is not None and text not in seen:
                seen.add(text)
                print(json.dumps({"text": text, "task": task, "source": name}))
        sys.stderr.write(f"{name}: {len(seen) - before} prompts\n")
    return 0 if seen else 1


if __name__ == "__main__":
    sys.exit(main())

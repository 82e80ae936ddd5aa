#!/usr/bin/env python3
"""Which sources clang-tidy looks at together, as one translation unit: nearly all of its time goes into headers, which they share.

Reads the paths of sources, one a line, and prints groups of them, one a line:

    git ls-files '*.cc' | joined_sources.py

The sources of a folder are in one group, with those of the folders after it while there is room. Sources that define the same
name in the unnamed namespace of the same namespace do not compile together: folders that clash are in different groups, and
//tests/tidy refuses a folder that clashes in itself. What a source defines is read with a few patterns, not with a compiler:
tidy.sh notices a group that does not compile.
"""

import collections
import functools
import pathlib
import re
import sys

GROUP_MAX = 24
# Sources that no other can stand beside, by what they contain or by path, and why.
ALONE_CONTENT = re.compile(
    r"#define HWY_TARGET_INCLUDE"  # Highway compiles the source once for each instruction set, one source in each unit
    r"|^int main\(", re.MULTILINE)
ALONE_PATHS = re.compile(r"^gpu/no_gpu_device\.cc$|^gpu/cuda/testing/")  # they define what another source defines

# `what`: "alias …", "type", "variable" or "function of (TYPES)", which its source has for itself; "shared" for a function that other
# sources may call; "use" for a namespace that its source writes as NAME::v1.
Definition = collections.namedtuple("Definition", "namespace name what")


def without_comments(text):
    """`text` without comments, directives and the content of strings."""
    text = re.sub(r'R"(\w*)\(.*?\)\1"', '""', text, flags=re.DOTALL)
    text = re.sub(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|//[^\n]*|/\*.*?\*/',
                  lambda found: '""' if found.group()[0] in "\"'" else "", text, flags=re.DOTALL)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", "", text, flags=re.MULTILINE)


def statements(text):
    """Yields (namespaces, head) of what stands directly in a namespace; a body is left out."""
    text = without_comments(text)
    namespaces = []
    begin = depth = 0  # depth: of the body that is left out
    head = ""
    for mark in re.finditer(r"[{};]", text):
        if depth > 0:
            depth += {"{": 1, "}": -1}.get(mark.group(), 0)
            if depth == 0 and re.search(r"\)[\w\s]*$", head) and "=" not in head.split("(")[0]:  # a function
                yield tuple(namespaces), head
                begin = mark.end()
            continue
        if mark.group() == "{":
            head = text[begin:mark.start()].strip()
            namespace = re.match(r"(?:inline )?namespace\s*([\w:]*)$", head)
            if not namespace:
                depth = 1
                continue
            namespaces.append(namespace.group(1))
        elif mark.group() == "}":
            if namespaces:
                namespaces.pop()
        else:
            yield tuple(namespaces), text[begin:mark.start()].strip()
        begin = mark.end()


def parameter_types(head):
    """The types of a function's parameters, as far as they tell one overload from another."""
    depth = 0
    types = [""]
    for char in head[head.index("(") + 1:head.rindex(")")]:
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(char, 0)
        if char == "," and depth == 0:
            types.append("")
        else:
            types[-1] += char
    return ", ".join(re.sub(r"(?<=[\w>&*]) *\b\w+$" if " " in kind.strip() or re.search(r"[>&*]", kind) else "$", "",
                            kind.split("=")[0].strip(), count=1) for kind in types)


def definition_of(namespaces, head):
    """What `head` defines, or None."""
    head = re.sub(r"\s+", " ", head)
    namespace = "::".join(part for part in namespaces if part)
    if found := re.match(r"(?:using|namespace) (\w+) = |using (?:[\w:]*::)?(\w+)$", head):
        return Definition(namespace, found.group(1) or found.group(2), "alias " + head)
    if head.startswith(("static_assert", "friend ", "using namespace", "extern ")):
        return None
    head = re.sub(r"^template ?<[^()]*?> (?=\w)", "", head)
    function = re.match(r"[^=]*?([\w:~]+) ?\(", head)
    if function and "::" in function.group(1):
        return None
    is_function = function and head.endswith((")", "const", "noexcept"))
    if "" not in namespaces:
        return Definition(namespace, function.group(1), "shared") if is_function else None
    if found := re.match(r"(?:struct|class|enum class|enum|union) (?:alignas\([^)]*\) ?)?(\w+)", head):
        return Definition(namespace, found.group(1), "type")
    if function:
        what = f"function of ({parameter_types(head)})" if is_function else "variable"
        return Definition(namespace, function.group(1), what)
    found = re.match(r"[^=]*?(\w+)(?:\[[^=]*\])?(?: =.*)?$", head)
    return Definition(namespace, found.group(1), "variable") if found and " " in head else None


@functools.lru_cache(maxsize=None)
def definitions(text):
    """What a source defines, and what it uses that a definition of another source could hide."""
    found = {definition_of(namespaces, head) for namespaces, head in statements(text)} - {None}
    used = set(re.findall(r"(?<![\w:])([a-z_]+)::v1\b", without_comments(text)))
    return found | {Definition(namespace, name, "use") for namespace in {one.namespace for one in found} for name in used}


def is_clash(first, second):
    """Whether two definitions of the same name keep their sources from compiling together."""
    kinds = {first.what.split()[0], second.what.split()[0]}
    if kinds == {"alias"} or kinds == {"function"}:
        return (first.what == second.what) == (kinds == {"function"})
    if "use" in kinds:
        return "alias" in kinds and "namespace" in first.what + second.what
    return kinds != {"shared"}


def types_of(header):
    """The (namespace, name) of types that the text of a header defines."""
    for namespaces, head in statements(header):
        head = re.sub(r"^template ?<[^()]*?> (?=\w)", "", re.sub(r"\s+", " ", head))
        if found := re.match(r"(?:struct|class|enum class|enum|union|using) (\w+)\b", head):
            yield "::".join(part for part in namespaces if part), found.group(1)


class Index:
    """What the sources of one group define."""

    def __init__(self):
        self.known = collections.defaultdict(list)  # (namespace, name) -> [(path, Definition)]

    def clashes(self, path, found):
        for definition in sorted(found):
            for other_path, other in self.known[definition.namespace, definition.name]:
                if other_path != path and is_clash(definition, other):
                    yield other_path, definition.name

    def add(self, path, found):
        for definition in found:
            self.known[definition.namespace, definition.name].append((path, definition))


def is_alone(path, text):
    return bool(ALONE_PATHS.search(path) or ALONE_CONTENT.search(text))


def clashes(texts):
    """Yields (path, other path, name) of sources of the same folder; `texts`: path -> text."""
    indexes = collections.defaultdict(Index)
    for path, text in sorted(texts.items()):
        if is_alone(path, text):
            continue
        index, found = indexes[pathlib.PurePath(path).parent], definitions(text)
        yield from ((path, other, name) for other, name in index.clashes(path, found))
        index.add(path, found)


def hidden_types(texts, headers):
    """Yields (path, header, name): a source has a name for itself alone that a header gives to a type. Both: path -> text."""
    types = {found: path for path, text in sorted(headers.items()) for found in types_of(text)}
    for path, text in sorted(texts.items()):
        for one in sorted(definitions(text)):
            if one.what.split()[0] in ("alias", "type", "variable", "function") and (one.namespace, one.name) in types:
                yield path, types[one.namespace, one.name], one.name


def groups(texts):
    """Lists of paths that are looked at together; `texts`: path -> text."""
    alone = sorted(path for path, text in texts.items() if is_alone(path, text))
    folders = collections.defaultdict(list)
    for path in sorted(set(texts) - set(alone)):
        folders[str(pathlib.PurePath(path).parent)].append(path)
    parts = [paths[begin:begin + GROUP_MAX] for _, paths in sorted(folders.items())
             for begin in range(0, len(paths), GROUP_MAX)]
    joined = []
    for part in parts:
        found = {path: definitions(texts[path]) for path in part}
        fits = joined and len(joined[-1][0]) + len(part) <= GROUP_MAX and not any(
            list(joined[-1][1].clashes(path, found[path])) for path in part)
        if not fits:
            joined.append(([], Index()))
        joined[-1][0].extend(part)
        for path in part:
            joined[-1][1].add(path, found[path])
    return [paths for paths, _ in joined] + [[path] for path in alone]


def main():
    texts = {path: pathlib.Path(path).read_text() for path in sys.stdin.read().split()}
    for paths in groups(texts):
        print(" ".join(paths))


if __name__ == "__main__":
    main()

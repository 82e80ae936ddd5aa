"""Where the CUDA toolkit is absent, the program and gpu/ still have all that they need, and of gpu/ the program has only the source
that refuses GPUs. Where nvcc is, it has the others.

Bazel would need a minute of its own for each of the two (`./dev soak`: toolkit_test.sh). Its language is a part of Python's, so
this evaluates the BUILD files itself: which rules they declare, and what these name.
"""

import pathlib
import re
import sys
import tempfile
import types

ROOT = pathlib.Path(__file__).resolve().parents[2]
REFUSES = "//gpu:no_gpu_device.cc"
TAKES = "//gpu:gpu_device.cc"


class Select(list):
    """What select() returns: the entries of every branch."""


class Stub:
    """Stands for what rules need only when they run."""

    def __getattr__(self, name):
        return Stub()

    def __call__(self, *args, **kwargs):
        return Stub()


class Tree:
    """The rules of all packages, on a machine whose CUDA_HOME is `cuda_home`."""

    def __init__(self, cuda_home):
        self.rules = {}  # label -> attributes; of a file that a rule makes, those of the rule
        self.package = None
        self.modules = {}
        self.repository = {}  # file of @cuda -> content
        self.read_toolkit(cuda_home)
        for build in sorted(ROOT.glob("**/BUILD.bazel")):
            self.package = str(build.parent.relative_to(ROOT))
            if self.package.startswith("third_party/r"):  # the repositories rules_cc and remote_coverage_tools
                continue
            self.package = "" if self.package == "." else self.package
            exec(compile(build.read_text(), str(build), "exec"), self.environment())

    def environment(self):
        found = {"__builtins__": {**vars(__import__("builtins")), "type": self.type_of}}
        rules = ["cc_binary", "cc_library", "cc_test", "config_setting", "filegroup", "genrule", "sh_binary", "sh_test"]
        native = {name: self.rule for name in rules}
        found.update(native)
        found.update(
            native=types.SimpleNamespace(package_name=lambda: self.package, **native),
            load=lambda label, *names, **renamed: found.update(self.load(label, names)),
            package=Stub(), exports_files=Stub(), attr=Stub(), CcInfo=None, cc_common=None,
            rule=lambda **_: self.rule, repository_rule=lambda **_: None,
            glob=self.glob, select=self.select, fail=sys.exit)
        return found

    @staticmethod
    def type_of(value):
        names = {Select: "select", list: "list", str: "string", dict: "dict", bool: "bool", int: "int"}
        return names.get(type(value), "function")

    @staticmethod
    def select(branches):
        values = list(branches.values())
        return Select(sum(values, [])) if isinstance(values[0], list) else values[-1]

    def glob(self, patterns, exclude=(), **_):
        folder = ROOT / self.package
        return [str(path.relative_to(folder)) for pattern in patterns for path in sorted(folder.glob(pattern))
                if path.is_file() and not any(path.match(one) for one in exclude)]

    def load(self, label, names):
        if label.startswith("@bazel_tools"):
            return {name: Stub() for name in names}
        if label.startswith("@cuda//:"):
            content = self.repository[label.removeprefix("@cuda//:")]
        else:
            path = self.full(label)[2:].replace(":", "/")
            label, content = path, (ROOT / path).read_text()
        if label not in self.modules:
            module = self.environment()
            exec(compile(content, label, "exec"), module)
            self.modules[label] = module
        return {name: self.modules[label][name] for name in names}

    def read_toolkit(self, cuda_home):
        """Runs the rule that looks for the toolkit."""
        self.package = "third_party"
        rule = self.load(":system.bzl", ["_cuda_toolkit_impl"])["_cuda_toolkit_impl"]
        rule(types.SimpleNamespace(
            os=types.SimpleNamespace(environ={"CUDA_HOME": str(cuda_home)}),
            path=lambda path: types.SimpleNamespace(exists=pathlib.Path(path).exists()),
            symlink=lambda source, name: None,
            file=self.repository.__setitem__))

    def rule(self, name, **attributes):
        self.rules[self.full(":" + name)] = attributes
        for out in attributes.get("outs", []):
            self.rules[self.full(out)] = attributes

    def full(self, label, package=None):
        package = self.package if package is None else package
        if label.startswith("@"):
            return label
        if label.startswith("//"):
            return label if ":" in label else f"{label}:{label.split('/')[-1]}"
        return f"//{package}:{label.removeprefix(':')}"

    def needed_by(self, labels):
        """All that rules need to be built, and what of it is missing."""
        needed, missing = set(), []
        waiting = [(label, "nothing") for label in labels]
        while waiting:
            label, user = waiting.pop()
            if label in needed or label.startswith("@"):
                continue
            needed.add(label)
            if label not in self.rules:
                if not (ROOT / label[2:].replace(":", "/").lstrip("/")).is_file():
                    missing.append(f"{user} needs {label}, which is neither a file nor declared")
                continue
            package = label[2:].split(":")[0]
            for attribute in ["srcs", "hdrs", "textual_hdrs", "deps", "data", "tools"]:
                waiting += [(self.full(one, package), label) for one in self.rules[label].get(attribute) or []]
        return needed, missing


def sources_of_gpu(tree):
    needed, missing = tree.needed_by(["//cli:megascale"])
    _, missing_in_gpu = tree.needed_by([label for label in tree.rules if re.match("//gpu[:/]", label)])
    if missing or missing_in_gpu:
        sys.exit("toolkit: " + "\n".join(sorted({*missing, *missing_in_gpu})))
    return {label for label in needed if re.search(r"^//gpu[:/].*\.c[cu]$", label) and label not in tree.rules}


def main():
    with tempfile.TemporaryDirectory() as folder:
        without = sources_of_gpu(Tree(folder))
        if without != {REFUSES}:
            sys.exit(f"toolkit: without the CUDA toolkit the program has of gpu/: {', '.join(sorted(without))}")
        nvcc = pathlib.Path(folder) / "bin" / "nvcc"
        nvcc.parent.mkdir()
        nvcc.touch()
        having = sources_of_gpu(Tree(folder))
        if TAKES not in having or REFUSES in having:
            sys.exit(f"toolkit: with nvcc the program has of gpu/: {', '.join(sorted(having))}")
    print(f"toolkit: without it the program has one source of gpu/, which refuses GPUs; with it {len(having)} others")


main()

#!/usr/bin/env python3
"""Writes a C++ source that holds the bytes of files: cuda::KernelImages() and the like.

usage: embed.py --out FILE.cc --function megascale::cuda::KernelImages [FILE...]
Each element of the span is an aggregate {name, data, size}, of the type and from the header that the options name.
"""

import argparse
import pathlib

PREFIX = '''// Made by tools/embed.py.
#include "{header}"

namespace {{

'''
SUFFIX = '''
const {type} images[] = {{
{entries}}};

}}  // namespace

absl::Span<const {type}> {function}() {{ return images; }}
'''
NO_FILES = '''}}  // namespace

absl::Span<const {type}> {function}() {{ return {{}}; }}
'''
BYTES_PER_LINE = 32
# A string is what compilers read fastest; three octal digits end by themselves.
ESCAPES = ["\\%03o" % byte for byte in range(256)]


def literal(data):
    for first in range(0, max(len(data), 1), BYTES_PER_LINE):
        yield '    "' + "".join(ESCAPES[byte] for byte in data[first:first + BYTES_PER_LINE]) + '"\n'


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--function", required=True, help="the function to define, with its namespace")
    parser.add_argument("--type", default="megascale::cuda::KernelImage")
    parser.add_argument("--header", default="gpu/cuda/kernel_images.h")
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    entries = []
    with open(options.out, "w", encoding="ascii") as out:
        out.write(PREFIX.format(header=options.header))
        for index, name in enumerate(options.files):
            path = pathlib.Path(name)
            data = path.read_bytes()
            out.write(f"// {path.name}\nalignas(64) const char image_{index}[] =\n")
            out.writelines(literal(data))
            out.write("    ;\n")
            entries.append(f'    {{"{path.name}", image_{index}, {len(data)}}},\n')
        suffix = SUFFIX if entries else NO_FILES
        out.write(suffix.format(entries="".join(entries), function=options.function, type=options.type))


main()

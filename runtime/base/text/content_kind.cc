#include "runtime/base/text/content_kind.h"

#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace megascale::base {
namespace {

struct Kind {
  absl::string_view magic;
  absl::string_view what;
  size_t offset = 0;
};
constexpr Kind kKinds[] = {
    {"version https://git-lfs.github.com/spec/",
     "is a pointer of Git LFS, not the file; fetch the file with `git lfs pull`"},
    {"PK\x03\x04", "is a zip archive, as PyTorch's .bin and .pt files are; save it as safetensors"},
    {"\x80\x02", "is a Python pickle, as older .bin and .pt files are; save it as safetensors"},
    {"\x80\x03", "is a Python pickle, as older .bin and .pt files are; save it as safetensors"},
    {"\x80\x04", "is a Python pickle, as older .bin and .pt files are; save it as safetensors"},
    {"\x80\x05", "is a Python pickle, as older .bin and .pt files are; save it as safetensors"},
    {"GGUF", "is a GGUF file of llama.cpp; expected the folder that it was made from"},
    {"\x1f\x8b", "is packed with gzip; unpack it"},
    {"\x28\xb5\x2f\xfd", "is packed with zstd; unpack it"},
    {"\xfd"
     "7zXZ",
     "is packed with xz; unpack it"},
    {"BZh", "is packed with bzip2; unpack it"},
    {"ustar", "is a tar archive; unpack it", 257},
    {"PAR1", "is a Parquet file"},
    {"\x93NUMPY", "is a NumPy array"},
    {"\x89HDF\r\n\x1a\n", "is an HDF5 file, as Keras writes them; save it as safetensors"},
    {"%PDF-", "is a PDF"},
    {"\xff\xfe", "is UTF-16; save it as UTF-8"},
    {"\xfe\xff", "is UTF-16; save it as UTF-8"},
};

bool IsHtml(absl::string_view head) {
  absl::ConsumePrefix(&head, "\xef\xbb\xbf");
  head = absl::StripLeadingAsciiWhitespace(head);
  for (const char* tag : {"<!doctype html", "<html", "<head", "<?xml"}) {
    if (absl::StartsWithIgnoreCase(head, tag)) return true;
  }
  return false;
}

}  // namespace

std::string WhatItIs(absl::string_view head) {
  if (head.empty()) return "is empty; fetch it again";
  for (const Kind& kind : kKinds) {
    if (head.size() >= kind.offset && absl::StartsWith(head.substr(kind.offset), kind.magic)) {
      return std::string(kind.what);
    }
  }
  if (IsHtml(head)) return "is a web page, such as a login page or an error; fetch the file again";
  return "";
}

}  // namespace megascale::base

// The files of static/, as the build embeds them (tools/embed.py).
#pragma once

#include <cstddef>

#include "absl/types/span.h"

namespace megascale::page {

struct StaticFile {
  const char* name;  // "page.js"
  const char* data;
  size_t size_bytes;
};

absl::Span<const StaticFile> StaticFiles();

}  // namespace megascale::page

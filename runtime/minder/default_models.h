// default_models.json, as the build embeds it (tools/embed.py).
#pragma once

#include <cstddef>

#include "absl/types/span.h"

namespace megascale::minder {

struct EmbeddedFile {
  const char* name;
  const char* data;
  size_t size_bytes;
};

// Returns the one file.
absl::Span<const EmbeddedFile> EmbeddedFiles();

}  // namespace megascale::minder

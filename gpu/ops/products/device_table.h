// Tables of products that were measured once on a kind of device, and are part of the program. A
// job whose products are in the table needs no tuning, and computes the same bits as every other
// job on this kind of device with this library.
//
// A file (gpu/tables) is JSON:
//
//   {"device": "NVIDIA H200",          as CUDA names it
//    "cublas_lt": 130100,              what cublasLtGetVersion returned
//    "workspace_bytes": 33554432,      that algorithms had
//    "driver": "580.65.06", "date": "2026-12-01", "commit": "0123abcd",
//    "table": {...}}                   as in the products.json of the job that measured it
//
// Does not use CUDA. Threads: plain functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gpu/ops/products/algorithm_table.h"

namespace megascale::gpu {

// A file of gpu/tables, embedded in the program.
struct DeviceTableFile {
  const char* name;
  const void* data;
  size_t size;  // in bytes
};

// Defined by generated code: depend on //gpu/tables.
absl::Span<const DeviceTableFile> DeviceTableFiles();

// Where products are computed. A table is used only if all of this is equal.
struct ProductPlace {
  std::string device;
  uint64_t library_version = 0;
  size_t workspace_bytes = 0;

  bool operator==(const ProductPlace&) const = default;
};

struct DeviceTable {
  ProductPlace place;
  AlgorithmTable table;  // its origin names the place, the driver, the date and the commit
};

// Errors: InvalidArgument - not the text of a device's table; the message names the key.
absl::StatusOr<DeviceTable> ParseDeviceTable(absl::string_view text);

struct DeviceTableChoice {
  AlgorithmTable table;  // empty: no file is for this place
  std::string line;      // for people: the chosen table, or why there is none; empty: no files
};

// Chooses the table that was measured at `place`. Errors: InvalidArgument - a file is damaged; the
// message names it.
absl::StatusOr<DeviceTableChoice> ChooseDeviceTable(absl::Span<const DeviceTableFile> files,
                                                    const ProductPlace& place);

}  // namespace megascale::gpu

// Which algorithm of cuBLASLt computes each product. This is part of the numerics, because each
// algorithm adds in a different order. A table is a value. It is tuned at a job's first start
// (products.h), agreed upon by all ranks, kept with the job as text, and used by every rank and
// attempt, so that the bits of a product do not depend on the rank or the attempt that computes it.
//
// Does not use CUDA, so tables can be read and written on machines without a device.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/ops/ops.h"

namespace megascale::gpu {

// What is done to a product before it is stored, or with its operands at the same time. kGelu is
// GELU by tanh, and also stores its input. kGeluGradient multiplies the product by GELU's slope.
// kBiasGradient is the sum of op(a) over k. To add an epilogue, add it here, in algorithm_table.cc
// (its name in the text), and in products.cc (EpilogueOf).
enum class Epilogue : uint8_t { kNone, kBias, kGelu, kBiasGelu, kGeluGradient, kBiasGradient };
inline constexpr std::array kEpilogues = {Epilogue::kNone,         Epilogue::kBias,
                                          Epilogue::kGelu,         Epilogue::kBiasGelu,
                                          Epilogue::kGeluGradient, Epilogue::kBiasGradient};

// Alignments above this many bytes count as this. No kernel loads more than 16 bytes at once, and
// so the choice of an algorithm does not depend on larger alignments that an allocator happens to
// give.
inline constexpr int kAlignmentMax = 16;

// The properties of a product on which the choice of its algorithm depends: c [m, n] of op(a) [m,
// k] and op(b) [k, n]. Strides count only by their alignment.
struct Product {
  tensor::DType compute = tensor::DType::kF32;  // of a and b
  tensor::DType result = tensor::DType::kF32;   // of c
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  ops::Transpose transpose_a = ops::Transpose::kNo;
  ops::Transpose transpose_b = ops::Transpose::kNo;
  bool accumulate = false;
  bool tf32 = false;  // fp32 operands may be rounded to TF32
  Epilogue epilogue = Epilogue::kNone;
  // The number of bytes of which the address and the distance of rows are multiples: a power of two
  // up to kAlignmentMax.
  int a_alignment = kAlignmentMax;
  int b_alignment = kAlignmentMax;
  int c_alignment = kAlignmentMax;
  int bias_alignment = kAlignmentMax;

  auto operator<=>(const Product&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const Product& p) {
    return H::combine(std::move(h), p.compute, p.result, p.m, p.n, p.k, p.transpose_a,
                      p.transpose_b, p.accumulate, p.tf32, p.epilogue, p.a_alignment, p.b_alignment,
                      p.c_alignment, p.bias_alignment);
  }
};

// Returns for example "BF16 [64, 32] x [32, 128]^T + bias to F32".
std::string Describe(const Product& product);

// Returns the description with the alignments: equal for equal products only.
std::string NameOf(const Product& product);

// An algorithm with its configuration: the attributes that cublasLt.h names (CUBLASLT_ALGO_CONFIG),
// and the library's own words (cublasLtMatmulAlgo_t). The words contain more than the attributes,
// but are valid only for the version of the library that wrote them.
struct Algorithm {
  uint64_t library_version = 0;  // result of cublasLtGetVersion, such as 130100
  int32_t id = 0;
  uint32_t tile = 0;
  int32_t split_k = 1;
  uint32_t reduction_scheme = 0;
  uint32_t swizzle = 0;
  uint32_t custom_option = 0;
  uint32_t stages = 0;
  uint16_t inner_shape = 0;
  uint16_t cluster_shape = 0;
  std::array<uint64_t, 8> words = {};  // all 0: not known

  auto operator<=>(const Algorithm&) const = default;
};

// The id in the entry of a product with an activation, or the gradient of a bias, for which the
// library had no algorithm when the table was made. The product is then computed without this
// epilogue, by an entry of its own, and a kernel computes the epilogue afterwards.
inline constexpr int32_t kNoAlgorithm = -1;

class AlgorithmTable {
 public:
  // Returns null if the product is not in the table. The pointer is valid until the next Set of the
  // product.
  const Algorithm* Find(const Product& product) const;
  // Adds or replaces. Requires (CHECK): m, n, k > 0.
  void Set(const Product& product, const Algorithm& algorithm);

  // Adds the products of another table that this one lacks, and its origin if this one has none.
  void Add(const AlgorithmTable& other) {
    products_.insert(other.products_.begin(), other.products_.end());
    if (origin_.empty()) origin_ = other.origin_;
  }

  // For people: the origin of algorithms that the job itself did not measure (device_table.h).
  // Empty: the job measured all algorithms.
  const std::string& origin() const { return origin_; }
  void set_origin(std::string origin) { origin_ = std::move(origin); }

  const std::map<Product, Algorithm>& products() const { return products_; }

  // Returns JSON with one product a line, in the order of Product. Equal tables give equal text.
  std::string ToJson() const;
  // Errors: InvalidArgument - not the text of a table; the message names the product and the key.
  static absl::StatusOr<AlgorithmTable> FromJson(absl::string_view text);

  bool operator==(const AlgorithmTable&) const = default;

 private:
  std::map<Product, Algorithm> products_;
  std::string origin_;
};

}  // namespace megascale::gpu

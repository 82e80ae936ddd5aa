// Which algorithm of cuBLASLt makes each product: part of the numerics, since each algorithm adds
// in an order of its own. A table is a value. It is tuned at a job's first start (products.h),
// agreed upon by all ranks, kept with the job as text, and used by every rank and attempt, so that
// the bits of a product do not depend on who computes it or when.
//
// Knows nothing of CUDA: it can be read and written where no device is.
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

// What is done to a product before it is stored, or with its operands meanwhile. GELU is that by
// tanh, and also stores its input; its gradient is multiplied by the product; the gradient of a
// bias is the sum of op(a) over k. Others are added here, in algorithm_table.cc (their name in the
// text), and in products.cc (EpilogueOf).
enum class Epilogue : uint8_t { kNone, kBias, kGelu, kBiasGelu, kGeluGradient, kBiasGradient };
inline constexpr std::array kEpilogues = {Epilogue::kNone,         Epilogue::kBias,
                                          Epilogue::kGelu,         Epilogue::kBiasGelu,
                                          Epilogue::kGeluGradient, Epilogue::kBiasGradient};

// The greatest alignment that is told apart, in bytes. No kernel loads more than 16 bytes at once,
// so that a choice does not depend on where an allocator places a tensor beyond that.
inline constexpr int kAlignmentMax = 16;

// A product as the choice of its algorithm sees it: c [m, n] of op(a) [m, k] and op(b) [k, n].
// Strides are not part of it, but for the alignment that they leave.
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
  // Bytes of which the address and the distance of rows are multiples: powers of two up to
  // kAlignmentMax.
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

// Returns such as "BF16 [64, 32] x [32, 128]^T + bias to F32".
std::string Describe(const Product& product);

// Returns the description with the alignments: equal for equal products only.
std::string NameOf(const Product& product);

// An algorithm with its configuration: the attributes that cublasLt.h names (CUBLASLT_ALGO_CONFIG),
// and the library's own words (cublasLtMatmulAlgo_t), which hold more than those but are valid for
// the version of the library that wrote them only.
struct Algorithm {
  uint64_t library_version = 0;  // what its cublasLtGetVersion returned, such as 130100
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
// library had no algorithm when the table was made: the product is made without it, by an entry of
// its own, and a kernel follows.
inline constexpr int32_t kNoAlgorithm = -1;

class AlgorithmTable {
 public:
  // Returns null for a product that is not in the table. The pointer is valid until the next Set of
  // the product.
  const Algorithm* Find(const Product& product) const;
  // Adds or replaces. Requires (CHECK): m, n, k > 0.
  void Set(const Product& product, const Algorithm& algorithm);

  // Adds the products of another table that this one lacks, and its origin if this one has none.
  void Add(const AlgorithmTable& other) {
    products_.insert(other.products_.begin(), other.products_.end());
    if (origin_.empty()) origin_ = other.origin_;
  }

  // For people: where the algorithms come from that were not measured by the job itself
  // (device_table.h). Empty: it measured all.
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

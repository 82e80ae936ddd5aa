#include "gpu/emulator/cublas_lt/algorithms.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace megascale::emulator {
namespace {

using Object = CublasLtObject;
using Operand = CublasLtOperand;
using Problem = CublasLtProblem;
using Words = AlgorithmWords;

constexpr uint32_t kMagic = 0x616c676f;

struct ConfigAttribute {
  int id;
  size_t offset;
  size_t bytes;
};
constexpr ConfigAttribute kConfigAttributes[] = {
    {CUBLASLT_ALGO_CONFIG_ID, offsetof(Words, id), 4},
    {CUBLASLT_ALGO_CONFIG_TILE_ID, offsetof(Words, tile), 4},
    {CUBLASLT_ALGO_CONFIG_SPLITK_NUM, offsetof(Words, split_k), 4},
    {CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, offsetof(Words, reduction_scheme), 4},
    {CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, offsetof(Words, swizzle), 4},
    {CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, offsetof(Words, custom_option), 4},
    {CUBLASLT_ALGO_CONFIG_STAGES_ID, offsetof(Words, stages), 4},
    {CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, offsetof(Words, inner_shape), 2},
    {CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, offsetof(Words, cluster_shape), 2},
};

const ConfigAttribute* FindConfigAttribute(int id) {
  for (const ConfigAttribute& attribute : kConfigAttributes) {
    if (attribute.id == id) return &attribute;
  }
  return nullptr;
}

struct PretendedAlgorithm {
  int32_t id = 0;
  bool does_fp32 = false;
  bool does_tf32 = false;
  bool does_bf16 = false;
  bool splits_k = false;
  bool has_clusters = false;
  uint32_t alignment = 0;           // of every matrix and its distance of columns, in bytes
  std::array<uint32_t, 2> tiles{};  // the best first
};

constexpr PretendedAlgorithm kAlgorithms[] = {
    {.id = 66,
     .does_tf32 = true,
     .does_bf16 = true,
     .has_clusters = true,
     .alignment = 16,
     .tiles = {CUBLASLT_MATMUL_TILE_128x256, CUBLASLT_MATMUL_TILE_128x128}},
    {.id = 21,
     .does_tf32 = true,
     .does_bf16 = true,
     .splits_k = true,
     .alignment = 8,
     .tiles = {CUBLASLT_MATMUL_TILE_128x128, CUBLASLT_MATMUL_TILE_64x64}},
    {.id = 24,
     .does_tf32 = true,
     .does_bf16 = true,
     .splits_k = true,
     .alignment = 2,
     .tiles = {CUBLASLT_MATMUL_TILE_64x64, CUBLASLT_MATMUL_TILE_32x32}},
    {.id = 20,
     .does_fp32 = true,
     .splits_k = true,
     .alignment = 4,
     .tiles = {CUBLASLT_MATMUL_TILE_128x64, CUBLASLT_MATMUL_TILE_32x32}},
};

const PretendedAlgorithm* FindAlgorithm(int32_t id) {
  for (const PretendedAlgorithm& algorithm : kAlgorithms) {
    if (algorithm.id == id) return &algorithm;
  }
  return nullptr;
}

bool Does(const PretendedAlgorithm& algorithm, int32_t compute_type, int32_t operand_type) {
  if (operand_type == CUDA_R_16BF) return algorithm.does_bf16;
  return compute_type == CUBLAS_COMPUTE_32F_FAST_TF32 ? algorithm.does_tf32 : algorithm.does_fp32;
}

}  // namespace

cublasLtMatmulAlgo_t Pack(const Words& words) { return std::bit_cast<cublasLtMatmulAlgo_t>(words); }
std::optional<Words> Unpack(const cublasLtMatmulAlgo_t* algorithm) {
  if (algorithm == nullptr) return std::nullopt;
  const Words words = std::bit_cast<Words>(*algorithm);
  if (words.magic != kMagic) return std::nullopt;
  return words;
}

std::vector<int32_t> AlgorithmIds(const ProductTypes& types) {
  std::vector<int32_t> ids;
  for (const PretendedAlgorithm& algorithm : kAlgorithms) {
    if (Does(algorithm, types.compute, types.operand)) ids.push_back(algorithm.id);
  }
  return ids;
}

cublasStatus_t InitAlgorithm(int32_t id, const ProductTypes& types, cublasLtMatmulAlgo_t* to) {
  const PretendedAlgorithm* const algorithm = FindAlgorithm(id);
  if (algorithm == nullptr || to == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (!Does(*algorithm, types.compute, types.operand)) return CUBLAS_STATUS_NOT_SUPPORTED;
  Words words;
  words.magic = kMagic;
  words.id = id;
  words.compute_type = types.compute;
  words.operand_type = types.operand;
  words.result_type = types.result;
  *to = Pack(words);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t SetConfiguration(int id, const void* from, size_t bytes, cublasLtMatmulAlgo_t* to) {
  const ConfigAttribute* const attribute = FindConfigAttribute(id);
  if (!Unpack(to).has_value() || attribute == nullptr || from == nullptr ||
      bytes != attribute->bytes || id == CUBLASLT_ALGO_CONFIG_ID) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  std::memcpy(reinterpret_cast<char*>(to) + attribute->offset, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t GetConfiguration(const cublasLtMatmulAlgo_t* from, int id, void* to, size_t bytes,
                                size_t* written) {
  const ConfigAttribute* const attribute = FindConfigAttribute(id);
  if (!Unpack(from).has_value() || attribute == nullptr ||
      (bytes == 0 ? written == nullptr : to == nullptr || bytes != attribute->bytes)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (bytes > 0) std::memcpy(to, reinterpret_cast<const char*>(from) + attribute->offset, bytes);
  if (written != nullptr) *written = attribute->bytes;
  return CUBLAS_STATUS_SUCCESS;
}

size_t WorkspaceOf(const Words& words, const Problem& p) {
  if (words.split_k <= 1) return 0;
  const auto results = static_cast<size_t>(p.m * p.n * words.split_k);
  switch (words.reduction_scheme) {
    case CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE:
      return results * sizeof(float);
    case CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE:
      return results * p.d.element_bytes();
    default:
      return 4096;  // counters
  }
}

cublasStatus_t CheckConfiguration(const Words& words, const Problem& p) {
  const PretendedAlgorithm* const algorithm = FindAlgorithm(words.id);
  if (algorithm == nullptr) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (words.compute_type != p.compute_type || words.operand_type != p.a.type ||
      words.result_type != p.d.type) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const auto& tiles = algorithm->tiles;
  if (!Does(*algorithm, p.compute_type, p.a.type) ||
      std::find(tiles.begin(), tiles.end(), words.tile) == tiles.end() || words.swizzle > 1 ||
      (words.cluster_shape != 0 && !algorithm->has_clusters)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const bool has_scheme = words.reduction_scheme == CUBLASLT_REDUCTION_SCHEME_INPLACE ||
                          words.reduction_scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE ||
                          words.reduction_scheme == CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
  if (words.split_k < 1 || (words.split_k > 1 && !(algorithm->splits_k && has_scheme))) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  for (const Operand* operand : {&p.a, &p.b, &p.c, &p.d}) {
    if (operand->distance_bytes() % algorithm->alignment != 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return CUBLAS_STATUS_SUCCESS;
}

std::vector<Words> ConfigurationsFor(const Problem& p) {
  std::vector<Words> configurations;
  for (const PretendedAlgorithm& algorithm : kAlgorithms) {
    for (const uint32_t tile : algorithm.tiles) {
      Words words;
      words.magic = kMagic;
      words.id = algorithm.id;
      words.tile = tile;
      words.stages = CUBLASLT_MATMUL_STAGES_64xAUTO;
      words.cluster_shape = algorithm.has_clusters ? CUBLASLT_CLUSTER_SHAPE_2x1x1 : 0;
      words.compute_type = p.compute_type;
      words.operand_type = p.a.type;
      words.result_type = p.d.type;
      words.hidden = 0x5eed0000 + tile;
      configurations.push_back(words);
      if (!algorithm.splits_k) continue;
      for (const auto scheme :
           {CUBLASLT_REDUCTION_SCHEME_INPLACE, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE,
            CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}) {
        words.split_k = 4;
        words.reduction_scheme = scheme;
        configurations.push_back(words);
      }
    }
  }
  if (p.k >= 256 && p.m * p.n <= 128 * 128) {
    std::stable_partition(configurations.begin(), configurations.end(),
                          [](const Words& words) { return words.split_k > 1; });
  }
  return configurations;
}

bool Suits(const Words& words, const Problem& p, const Object& preference) {
  if (CheckConfiguration(words, p) != CUBLAS_STATUS_SUCCESS) return false;
  const uint64_t workspace = preference.Get(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
  if (WorkspaceOf(words, p) > workspace) return false;
  const uint64_t mask = preference.Get(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
  if (words.split_k > 1 && (words.reduction_scheme & mask) == 0) return false;
  const uint32_t alignment = FindAlgorithm(words.id)->alignment;
  for (const int id :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    if (preference.Get(id) % alignment != 0) return false;
  }
  return true;
}

bool IsAligned(const Words& words, const Problem& p) {
  const uint32_t alignment = FindAlgorithm(words.id)->alignment;
  for (const void* data : {p.a_data, p.b_data, p.c_data, static_cast<const void*>(p.d_data)}) {
    if (reinterpret_cast<uintptr_t>(data) % alignment != 0) return false;
  }
  return !p.has_bias || reinterpret_cast<uintptr_t>(p.bias) % p.d.element_bytes() == 0;
}

}  // namespace megascale::emulator

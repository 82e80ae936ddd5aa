// The algorithms that the emulated cuBLASLt pretends to have, and the products that each can
// compute.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "gpu/emulator/cublas_lt/object.h"
#include "gpu/emulator/cublas_lt/problem.h"

namespace megascale::emulator {

// The content of cublasLtMatmulAlgo_t in the emulated library.
struct AlgorithmWords {
  int32_t id = 0;
  uint32_t tile = 0;
  int32_t split_k = 1;
  uint32_t reduction_scheme = 0;
  uint32_t swizzle = 0;
  uint32_t custom_option = 0;
  uint32_t stages = 0;
  uint16_t inner_shape = 0;
  uint16_t cluster_shape = 0;
  // The real library keeps more than its header has attributes for. So does the emulated library.
  uint32_t hidden = 0;
  int32_t compute_type = 0;
  int32_t operand_type = 0;
  int32_t result_type = 0;
  uint32_t magic = 0;
  uint32_t unused[3] = {};
};
static_assert(sizeof(AlgorithmWords) == sizeof(cublasLtMatmulAlgo_t));

cublasLtMatmulAlgo_t Pack(const AlgorithmWords& words);
// Returns nullopt for null, and for words that Pack did not make.
std::optional<AlgorithmWords> Unpack(const cublasLtMatmulAlgo_t* algorithm);

// Types of one product, as passed to cublasLtMatmulAlgoInit.
struct ProductTypes {
  int32_t compute = 0, operand = 0, result = 0;
};
// Behave as cublasLtMatmulAlgoGetIds and cublasLtMatmulAlgoInit.
std::vector<int32_t> AlgorithmIds(const ProductTypes& types);
cublasStatus_t InitAlgorithm(int32_t id, const ProductTypes& types, cublasLtMatmulAlgo_t* to);

// Behave as cublasLtMatmulAlgoConfigSetAttribute and GetAttribute.
cublasStatus_t SetConfiguration(int attribute, const void* from, size_t bytes,
                                cublasLtMatmulAlgo_t* to);
cublasStatus_t GetConfiguration(const cublasLtMatmulAlgo_t* from, int attribute, void* to,
                                size_t bytes, size_t* written);

// Returns the algorithms that can compute the product, in the order in which a library would expect
// them to be fast: if k is long and there are few tiles, algorithms that split k come first.
std::vector<AlgorithmWords> ConfigurationsFor(const CublasLtProblem& problem);

// Checks that the algorithm, as configured, can compute the product. Does not check addresses.
cublasStatus_t CheckConfiguration(const AlgorithmWords& words, const CublasLtProblem& problem);
// Whether the algorithm can compute the product and fits the preferences of a request to the
// heuristic.
bool Suits(const AlgorithmWords& words, const CublasLtProblem& problem,
           const CublasLtObject& preference);
// Whether the addresses of the problem suit the algorithm.
bool IsAligned(const AlgorithmWords& words, const CublasLtProblem& problem);

size_t WorkspaceOf(const AlgorithmWords& words, const CublasLtProblem& problem);

}  // namespace megascale::emulator

// What the conformance tests of operators share: an Ops under test beside the float64 reference, by
// compute type and number of threads.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <tuple>

#include "gtest/gtest.h"
#include "hwy/targets.h"
#include "runtime/ops/conformance.h"
#include "runtime/ops/ops.h"

namespace megascale::ops {

inline constexpr ActivationKind kActivationKinds[] = {
    ActivationKind::kGelu, ActivationKind::kGeluTanh, ActivationKind::kSwiGlu};

class Conformance : public ::testing::TestWithParam<std::tuple<DType, int>> {
 protected:
  // Whether the test target limits oneDNN to these instructions.
  static bool IsLimitedTo(const std::string& instructions) {
    const char* limit = std::getenv("ONEDNN_MAX_CPU_ISA");
    return limit != nullptr && limit == instructions;
  }
  // A limit of AVX2 applies to our own kernels as well.
  static void SetUpTestSuite() {
    if (!IsLimitedTo("AVX2")) return;
    hwy::DisableTargets(HWY_AVX3 | HWY_AVX3_DL);
    ASSERT_STREQ(InstructionSet(), "avx2");
  }
  // Skips visibly where the processor lacks AVX512-BF16, so that the target does not pass untested.
  void SetUp() override {
    if (IsLimitedTo("AVX512_CORE_BF16") && std::string(InstructionSet()) != "avx512_bf16") {
      GTEST_SKIP() << "this processor has " << InstructionSet() << ", not AVX512-BF16";
    }
  }

  DType dtype() const { return std::get<0>(GetParam()); }

  std::unique_ptr<Ops> exact_ = MakeReferenceOps();
  std::unique_ptr<Ops> tested_ = MakeCpuOps(std::get<0>(GetParam()), std::get<1>(GetParam()));
};

}  // namespace megascale::ops

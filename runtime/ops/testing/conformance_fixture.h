// What the conformance tests of operators share: an Ops under test beside the float64 reference.
#pragma once

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "hwy/targets.h"
#include "runtime/device/testing/hosted_ops.h"
#include "runtime/device/testing/test_devices.h"
#include "runtime/ops/conformance.h"
#include "runtime/ops/ops.h"

namespace megascale::ops {

inline constexpr ActivationKind kActivationKinds[] = {
    ActivationKind::kGelu, ActivationKind::kGeluTanh, ActivationKind::kSwiGlu};

// An implementation under test.
struct Tested {
  std::string name;
  DType dtype;
  std::function<std::unique_ptr<Ops>()> make;
};

// The CPU's operators, on one thread and on two; and those of each other device, whose tensors are
// copied there and back.
inline std::vector<Tested> AllTested() {
  std::vector<Tested> all;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::string type = dtype == DType::kF32 ? "F32" : "BF16";
    for (const int threads : {1, 2}) {
      all.push_back({type + "Threads" + std::to_string(threads), dtype,
                     [=] { return MakeCpuOps(dtype, threads); }});
    }
    for (const device::TestDevice& device : device::AllDevices()) {
      if (device.name == "Cpu") continue;
      all.push_back({device.name + type, dtype,
                     [=] { return device::MakeHostedOps(device.make(/*seed=*/1), dtype, 1); }});
    }
  }
  return all;
}

class Conformance : public ::testing::TestWithParam<Tested> {
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

  DType dtype() const { return GetParam().dtype; }

  std::unique_ptr<Ops> exact_ = MakeReferenceOps();
  std::unique_ptr<Ops> tested_ = GetParam().make();
};

}  // namespace megascale::ops

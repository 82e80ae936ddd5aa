#include "runtime/engine/checked_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace megascale::engine {
namespace {

using ops::Matrix;
using ops::Vector;

CheckedOps::FirstNotFiniteOf FirstNotFinite(ops::Ops* ops) {
  return [ops](const Matrix& x) {
    double found = 0;
    ops->FirstNotFinite(x, {&found, ops::DType::kF64, 1});
    return found;
  };
}

constexpr double kInf = std::numeric_limits<double>::infinity();

// Operators of 2 x 2 on memory whose parameters have names.
class CheckedOpsTest : public ::testing::Test {
 protected:
  Matrix Square(std::vector<double>* values) {
    values->resize(4, 1.0);
    return {values->data(), ops::DType::kF64, 2, 2, 2};
  }
  Vector Flat(std::vector<double>* values) {
    values->resize(2, 1.0);
    return {values->data(), ops::DType::kF64, 2};
  }
  void Multiply() {
    checked_.MatMul({.a = Square(&in_),
                     .b = Square(&weight_),
                     .c = Square(&out_),
                     .transpose_b = ops::Transpose::kYes,
                     .bias = {}});
  }

  std::vector<double> in_ = std::vector<double>(4, 1.0);
  std::vector<double> weight_ = std::vector<double>(4, 1.0);
  std::vector<double> gradient_ = std::vector<double>(4, 1.0);
  std::vector<double> out_;
  std::unique_ptr<ops::Ops> ops_ = ops::MakeReferenceOps();
  CheckedOps checked_{ops_.get(),
                      [this](const void* at) -> std::string {
                        if (at == weight_.data()) return "model.layers.12.attn.qkv.weight";
                        if (at == gradient_.data()) return "lm_head.weight";
                        return "";
                      },
                      FirstNotFinite(ops_.get())};
};

TEST_F(CheckedOpsTest, ResultsAreThoseOfTheOperatorsBehindIt) {
  Multiply();
  EXPECT_EQ(out_, std::vector<double>(4, 2.0));
  EXPECT_EQ(checked_.finding(), "");
}

TEST_F(CheckedOpsTest, TheFirstFindingStays) {
  in_[3] = kInf;
  Multiply();
  EXPECT_EQ(checked_.finding(), "layer 12: matrix product with attn.qkv.weight gave inf");
  weight_[0] = std::nan("");
  Multiply();
  EXPECT_EQ(checked_.finding(), "layer 12: matrix product with attn.qkv.weight gave inf");
}

TEST_F(CheckedOpsTest, AnOperatorWithoutParametersIsNamedAfterTheOneBefore) {
  Multiply();
  in_[0] = -kInf;
  checked_.Add(Square(&in_), Square(&out_), Square(&out_));
  EXPECT_EQ(checked_.finding(), "layer 12: residual sum, after attn.qkv.weight, gave -inf");
}

TEST_F(CheckedOpsTest, GradientsAreNamedByTheirParameter) {
  in_[1] = std::nan("");
  checked_.MatMul({.a = Square(&in_),
                   .b = Square(&in_),
                   .c = Square(&gradient_),
                   .transpose_a = ops::Transpose::kYes,
                   .accumulate = true,
                   .bias = {}});
  EXPECT_EQ(checked_.finding(), "gradient of lm_head.weight gave nan");
}

TEST_F(CheckedOpsTest, WhatCameInFromOutsideHasNoPlace) {
  in_[2] = kInf;
  checked_.Activation(
      {.kind = ops::ActivationKind::kGelu, .in = Square(&in_), .out = Square(&out_)});
  EXPECT_EQ(checked_.finding(), "activation, after what it was given, gave inf");
}

TEST_F(CheckedOpsTest, NumbersOfEveryTypeAreLookedAt) {
  const auto found = [](ops::DType dtype, void* data) {
    const auto ops = ops::MakeCpuOps(ops::DType::kF32, 1);
    CheckedOps checked(
        ops.get(), [](const void*) { return std::string("w"); }, FirstNotFinite(ops.get()));
    std::vector<float> x(4, 0);
    checked.AddColumnSums({x.data(), ops::DType::kF32, 2, 2, 2}, {data, dtype, 2});
    return checked.finding();
  };
  std::vector<float> single = {1, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_EQ(found(ops::DType::kF32, single.data()), "gradient of w gave nan");
  single[1] = std::numeric_limits<float>::max();
  EXPECT_EQ(found(ops::DType::kF32, single.data()), "");
}

}  // namespace
}  // namespace megascale::engine

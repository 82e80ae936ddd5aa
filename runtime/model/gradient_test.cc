// The whole model's gradients against central finite differences of its loss, in float64.
//
// Tolerance: with a step of 1e-5 the differences carry a rounding error of about 1e-16 * loss (40)
// / 1e-5 = 4e-10 and a truncation error of 1e-10 times the third derivative (below 1e3 here).
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "runtime/model/testing/test_pipeline.h"

namespace megascale::model {
namespace {

constexpr double kStep = 1e-5;
constexpr double kScale = 0.125;
constexpr double kTolerance = 1e-7;  // absolute, and relative to the gradient
// A norm of the four elements of a head bends more: third derivatives up to 3e4.
constexpr double kToleranceWithHeadNorms = 3e-6;

// A model, its tokens and its gradients by hand.
class GradientCheck {
 public:
  // `within_documents`: the samples' third and fifth tokens end documents.
  explicit GradientCheck(const ModelConfig& config, bool within_documents = false,
                         int num_chunks = 1)
      : ops_(ops::MakeReferenceOps()),
        pipeline_(
            {.config = config, .num_chunks = num_chunks, .end_token = within_documents ? 0 : -1},
            ops_.get()),
        tokens_(RandomTokens(2 * 7, config.vocab_size, 3)),
        tolerance_(config.qk_norm ? kToleranceWithHeadNorms : kTolerance) {
    for (const size_t end : {2, 4, 9, 11}) {
      if (within_documents) tokens_[end] = 0;
    }
    pipeline_.Forward(0, tokens_, kScale);
    pipeline_.Backward(0);
    gradients_ = pipeline_.Gradients();
  }

  const NamedValues& gradients() const { return gradients_; }

  // Compares the derivative along `direction` of one tensor.
  void Check(const std::string& name, const std::vector<double>& direction) {
    const std::vector<double>& gradient = gradients_.at(name);
    double by_hand = 0;
    for (size_t i = 0; i < direction.size(); ++i) by_hand += direction[i] * gradient[i];
    const double measured =
        (LossMoved(name, direction, kStep) - LossMoved(name, direction, -kStep)) / (2 * kStep);
    EXPECT_NEAR(by_hand, measured, tolerance_ * (1 + std::abs(measured))) << name;
  }

 private:
  double LossMoved(const std::string& name, const std::vector<double>& direction, double step) {
    double* const weights = pipeline_.Weights(name);
    const std::vector<double> before(weights, weights + direction.size());
    for (size_t i = 0; i < direction.size(); ++i) weights[i] += step * direction[i];
    const double loss = kScale * pipeline_.Evaluate(tokens_, 2);
    std::copy(before.begin(), before.end(), weights);
    return loss;
  }

  std::unique_ptr<ops::Ops> ops_;
  TestPipeline pipeline_;
  std::vector<int32_t> tokens_;
  const double tolerance_;
  NamedValues gradients_;
};

// Two directions for each tensor, with every element in them.
void CheckDirections(const ModelConfig& config, bool within_documents = false) {
  GradientCheck check(config, within_documents);
  for (const auto& [name, gradient] : check.gradients()) {
    for (const double frequency : {1.0, 2.3}) {
      std::vector<double> direction(gradient.size());
      for (size_t i = 0; i < direction.size(); ++i) direction[i] = std::cos(frequency * (i + 1));
      check.Check(name, direction);
    }
  }
}

// Each element by itself.
void CheckElements(const ModelConfig& config, int num_chunks = 1) {
  GradientCheck check(config, /*within_documents=*/false, num_chunks);
  for (const auto& [name, gradient] : check.gradients()) {
    std::vector<double> direction(gradient.size(), 0.0);
    for (double& element : direction) {
      element = 1;
      check.Check(name, direction);
      element = 0;
    }
  }
}

TEST(Gradient, EqualsFiniteDifferencesForEveryCombinationOfOptions) {
  for (const ModelConfig& config : AllCombinations(TinyConfig())) {
    SCOPED_TRACE(Describe(config));
    CheckDirections(config);
  }
}

TEST(Gradient, EqualsFiniteDifferencesWhereAttentionStaysWithinDocuments) {
  for (const ModelConfig& config : Styles(TinyConfig(), 2)) {
    SCOPED_TRACE(Describe(config));
    CheckDirections(config, /*within_documents=*/true);
  }
}

TEST(Gradient, EqualsFiniteDifferencesInEachElementOfAnOldStyleModel) {
  CheckElements(TinyConfig());
}

TEST(Gradient, EqualsFiniteDifferencesWhereHeadsAreWiderThanTheirShareOfTheHiddenSize) {
  ModelConfig config = TinyConfig();
  config.position = PositionKind::kRotary;
  config.rotary_dim = 4;
  config.head_dim = 6;
  CheckDirections(config);
}

TEST(Gradient, EqualsFiniteDifferencesInEachElementOfANeoXStyleModel) {
  CheckElements(NeoXStyle(TinyConfig()));
}

TEST(Gradient, EqualsFiniteDifferencesInEachElementOfAQwenStyleModel) {
  CheckElements(QwenStyle(TinyConfig()));
}

TEST(Gradient, EqualsFiniteDifferencesInEachElementOfANewStyleModel) {
  ModelConfig config = NewStyle(TinyConfig(), 3);
  config.tied = true;
  CheckElements(config);
}

// Its last chunk's head uses the first chunk's matrix.
TEST(Gradient, EqualsFiniteDifferencesInEachElementOfATiedModelInTwoChunks) {
  ModelConfig config = QwenStyle(TinyConfig());
  config.tied = true;
  CheckElements(config, /*num_chunks=*/2);
}

}  // namespace
}  // namespace megascale::model

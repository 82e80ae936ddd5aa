#include "runtime/machine/core_check.h"

#include <pthread.h>
#include <sched.h>

#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/checksum.h"
#include "runtime/base/clock.h"
#include "runtime/ops/ops.h"

namespace megascale::machine {
namespace {

// --- the cores --------------------------------------------------------------------------------

std::vector<int> Cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return {0};
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

// Runs `once` on every core at the same time, again and again for the budget, and returns the first
// failure, with its core. `make` makes what one core runs. Cores for which there is no thread or no
// memory are left out, with a note.
PartResult OnEveryCore(absl::Duration budget,
                       const std::function<std::function<std::string()>()>& make) {
  PartResult result;
  std::mutex mutex;
  std::vector<std::thread> threads;
  const auto run = [&](int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    // If this is refused, the thread runs wherever the kernel puts it.
    ::pthread_setaffinity_np(::pthread_self(), sizeof(set), &set);
    std::string failure;
    std::string note;
    try {
      const std::function<std::string()> once = make();
      const absl::Duration end = base::RealClock().Monotonic() + budget;
      do {
        failure = once();
      } while (failure.empty() && base::RealClock().Monotonic() < end);
    } catch (const std::bad_alloc&) {
      note = "no memory for its products";
    }
    const std::lock_guard<std::mutex> lock(mutex);
    if (!failure.empty() && result.failure.empty()) {
      result.failure = absl::StrCat("core ", core, ": ", failure);
    }
    if (!note.empty() && result.note.empty()) result.note = absl::StrCat("core ", core, ": ", note);
  };
  const std::vector<int> cores = Cores();
  std::string no_thread;
  for (const int core : cores) {
    try {
      threads.emplace_back(run, core);
    } catch (const std::system_error& error) {
      no_thread = absl::StrCat(threads.size(), " of ", cores.size(),
                               " cores were tested: no thread for another one: ", error.what());
      break;
    }
  }
  for (std::thread& thread : threads) thread.join();
  if (!no_thread.empty()) result.note = no_thread;
  return result;
}

// --- a small training run ---------------------------------------------------------------------

constexpr int kSamples = 16, kInputs = 8, kHidden = 16, kSteps = 48;

// y = W2 relu(W1 x), trained to y = x0 x1 - x2 by Adam.
template <typename Real>
class Network {
 public:
  Network() {
    uint32_t state = 12345;
    const auto next = [&state] {  // in [-0.5, 0.5)
      state = state * 1664525u + 1013904223u;
      return static_cast<Real>(static_cast<int32_t>(state >> 8) - (1 << 23)) /
             static_cast<Real>(1 << 24);
    };
    for (Real& weight : weights_) weight = next();
    for (Real& x : inputs_) x = next();
  }

  void Step(int step) {
    std::array<Real, kWeights> gradient = {};
    for (int s = 0; s < kSamples; ++s) AddGradient(&inputs_[s * kInputs], &gradient);
    correction1_ = step == 1 ? kBeta1 : correction1_ * kBeta1;
    correction2_ = step == 1 ? kBeta2 : correction2_ * kBeta2;
    for (int i = 0; i < kWeights; ++i) {
      m_[i] = kBeta1 * m_[i] + (1 - kBeta1) * gradient[i];
      v_[i] = kBeta2 * v_[i] + (1 - kBeta2) * gradient[i] * gradient[i];
      const Real m_hat = m_[i] / (1 - correction1_);
      const Real v_hat = v_[i] / (1 - correction2_);
      weights_[i] -= kRate * m_hat / (std::sqrt(v_hat) + kEpsilon);
    }
  }

  uint64_t Digest() const { return base::Xxh3(weights_.data(), sizeof(weights_)); }

 private:
  static constexpr int kWeights = kHidden * kInputs + kHidden;
  static constexpr Real kBeta1 = static_cast<Real>(0.9), kBeta2 = static_cast<Real>(0.99);
  static constexpr Real kRate = static_cast<Real>(0.01), kEpsilon = static_cast<Real>(1e-6);

  void AddGradient(const Real* x, std::array<Real, kWeights>* gradient) const {
    const Real* output = &weights_[kHidden * kInputs];
    std::array<Real, kHidden> hidden = {};
    Real y = 0;
    for (int h = 0; h < kHidden; ++h) {
      for (int i = 0; i < kInputs; ++i) hidden[h] += weights_[h * kInputs + i] * x[i];
      if (hidden[h] > 0) y += output[h] * hidden[h];
    }
    const Real error = y - (x[0] * x[1] - x[2]);
    for (int h = 0; h < kHidden; ++h) {
      if (!(hidden[h] > 0)) continue;
      (*gradient)[kHidden * kInputs + h] += error * hidden[h];
      for (int i = 0; i < kInputs; ++i) (*gradient)[h * kInputs + i] += error * output[h] * x[i];
    }
  }

  std::array<Real, kWeights> weights_ = {}, m_ = {}, v_ = {};
  std::array<Real, kSamples* kInputs> inputs_ = {};
  Real correction1_ = 1, correction2_ = 1;
};

template <typename Real>
uint64_t Train() {
  Network<Real> network;
  for (int step = 1; step <= kSteps; ++step) network.Step(step);
  return network.Digest();
}

// --- products ---------------------------------------------------------------------------------

// Products of whole numbers from -7 to 7: at most 49 * kSize < 2^24, exact in fp32.
constexpr int64_t kSize = 128;
constexpr size_t kElements = static_cast<size_t>(kSize * kSize);

std::vector<float> WholeNumbers(uint32_t seed) {
  std::vector<float> numbers(kElements);
  for (float& number : numbers) {
    seed = seed * 1664525u + 1013904223u;
    number = static_cast<float>(static_cast<int>((seed >> 16) % 15) - 7);
  }
  return numbers;
}

std::vector<float> ExactProduct(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> c(kElements);
  for (size_t i = 0; i < kSize; ++i) {
    for (size_t j = 0; j < kSize; ++j) {
      int sum = 0;
      for (size_t k = 0; k < kSize; ++k) {
        sum += static_cast<int>(a[i * kSize + k]) * static_cast<int>(b[k * kSize + j]);
      }
      c[i * kSize + j] = static_cast<float>(sum);
    }
  }
  return c;
}

ops::Matrix SquareOf(void* data, tensor::DType dtype) {
  ops::Matrix matrix;
  matrix.data = data;
  matrix.dtype = dtype;
  matrix.rows = kSize;
  matrix.cols = kSize;
  matrix.stride = kSize;
  return matrix;
}

// One core's products in one type.
class Products {
 public:
  Products(tensor::DType compute, const Tamper& tamper)
      : compute_(compute), tamper_(tamper), ops_(ops::MakeCpuOps(compute, 1)) {
    const std::vector<float> a = WholeNumbers(1);
    const std::vector<float> b = WholeNumbers(2);
    expected_ = ExactProduct(a, b);
    c_.resize(kElements);
    if (compute == tensor::DType::kBF16) {
      for (const float x : a) a16_.push_back(tensor::ToBFloat16(x));
      for (const float x : b) b16_.push_back(tensor::ToBFloat16(x));
    } else {
      a_ = a;
      b_ = b;
    }
  }

  // Returns what is wrong; empty: nothing.
  std::string Run() {
    const bool half = compute_ == tensor::DType::kBF16;
    ops::MatMulArgs args;
    args.a = SquareOf(half ? static_cast<void*>(a16_.data()) : a_.data(), compute_);
    args.b = SquareOf(half ? static_cast<void*>(b16_.data()) : b_.data(), compute_);
    args.c = SquareOf(c_.data(), tensor::DType::kF32);
    ops_->MatMul(args);
    if (tamper_) tamper_(c_.data(), c_.size() * sizeof(float));
    for (size_t i = 0; i < kElements; ++i) {
      if (c_[i] == expected_[i]) continue;
      return absl::StrFormat("a product in %s has the element %.9g, expected %.9g",
                             half ? "bf16" : "fp32", c_[i], expected_[i]);
    }
    return "";
  }

 private:
  const tensor::DType compute_;
  const Tamper& tamper_;
  std::unique_ptr<ops::Ops> ops_;
  std::vector<float> a_, b_, c_, expected_;
  std::vector<tensor::BFloat16> a16_, b16_;
};

}  // namespace

uint64_t ReplayTraining() {
  const std::array<uint64_t, 2> digests = {Train<double>(), Train<float>()};
  return base::Xxh3(digests.data(), sizeof(digests));
}

PartResult CheckTraining(const TrainingOptions& options) {
  return OnEveryCore(options.budget, [&options] {
    return [&options]() -> std::string {
      const uint64_t digest = options.training();
      if (digest == kTrainingDigest) return "";
      return absl::StrFormat("%d training steps gave weights with digest %016x, expected %016x",
                             kSteps, digest, kTrainingDigest);
    };
  });
}

PartResult CheckArithmetic(const ArithmeticOptions& options) {
  return OnEveryCore(options.budget, [&options] {
    auto single = std::make_shared<Products>(tensor::DType::kF32, options.tamper);
    auto half = std::make_shared<Products>(tensor::DType::kBF16, options.tamper);
    return [single, half] {
      std::string failure = single->Run();
      return failure.empty() ? half->Run() : failure;
    };
  });
}

}  // namespace megascale::machine

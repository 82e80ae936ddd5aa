// Products of matrices. An exact product C = A B of whole numbers is checked in n^2 operations by
// C r = A (B r), for a vector r of whole numbers without a zero: one wrong element always shows.
#include <algorithm>
#include <bit>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/device/check/device_check.h"
#include "runtime/ops/ops.h"
#include "runtime/stream/stream.h"

namespace megascale::device::check {
namespace {

using tensor::DType;

constexpr int kProductsPerTurn = 4;  // between two waits for the device
constexpr int64_t kSizeMax =
    65536;  // 49 * kSizeMax < 2^24: sums of whole numbers are exact in fp32

absl::Duration Now() { return base::RealClock().Monotonic(); }

bool HasSameBits(float left, float right) {
  return std::bit_cast<uint32_t>(left) == std::bit_cast<uint32_t>(right);
}

uint32_t Hash(uint64_t index) {
  uint64_t word = (index + 1) * 0x9E3779B97F4A7C15;
  word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9;
  return static_cast<uint32_t>(word >> 32);
}
// From -7 to 7.
int8_t WholeNumber(uint64_t index) {
  return static_cast<int8_t>(static_cast<int>(Hash(index) % 15) - 7);
}
// From -1 to 1.
float Fraction(uint64_t index) {
  return static_cast<float>(static_cast<int>(Hash(index) >> 8) - (1 << 23)) /
         static_cast<float>(1 << 23);
}
int64_t Probe(size_t col) { return 1 + static_cast<int64_t>(col % 7); }

// Square matrices on the device, and what moves and multiplies them.
class Products {
 public:
  explicit Products(const ProductOptions& options)
      : options_(options), n_(static_cast<size_t>(options.size)) {}

  // Errors: ResourceExhausted - no memory, or no stream.
  absl::Status Open(device::Device* device) {
    const size_t in_bytes = n_ * n_ * SizeOf(options_.compute), out_bytes = n_ * n_ * sizeof(float);
    ASSIGN_OR_RETURN(pinned_, device->AllocateHost("the test of products", out_bytes));
    ASSIGN_OR_RETURN(a_, device->Allocate("the test of products", in_bytes));
    ASSIGN_OR_RETURN(b_, device->Allocate("the test of products", in_bytes));
    ASSIGN_OR_RETURN(c_, device->Allocate("the test of products", out_bytes));
    ASSIGN_OR_RETURN(stream_, device->MakeStream("device test"));
    ops_ = device->MakeOps(stream_.get(), options_.compute, options_.num_threads);
    return absl::OkStatus();
  }

  // `value`: of an element, by its number; those of B begin with n * n.
  absl::Status SetFactors(float (*value)(uint64_t)) {
    RETURN_IF_ERROR(Upload(value, 0, a_->data()));
    return Upload(value, n_ * n_, b_->data());
  }

  // Multiplies `count` times and waits.
  absl::Status Multiply(int count) {
    ops::MatMulArgs args;
    args.a = {a_->data(), options_.compute, options_.size, options_.size, options_.size};
    args.b = {b_->data(), options_.compute, options_.size, options_.size, options_.size};
    args.c = {c_->data(), DType::kF32, options_.size, options_.size, options_.size};
    stream_->RunAndWait([&] {
      for (int i = 0; i < count; ++i) ops_->MatMul(args);
    });
    return stream_->Synchronize();
  }

  // Returns C, until the next call.
  absl::StatusOr<float*> Download() {
    const size_t bytes = n_ * n_ * sizeof(float);
    stream_->RunAndWait([&] { stream_->Copy(pinned_->data(), c_->data(), bytes); });
    RETURN_IF_ERROR(stream_->Synchronize());
    return static_cast<float*>(pinned_->data());
  }

 private:
  absl::Status Upload(float (*value)(uint64_t), uint64_t first, void* to) {
    if (options_.compute == DType::kBF16) {
      auto* const here = static_cast<tensor::BFloat16*>(pinned_->data());
      for (uint64_t i = 0; i < n_ * n_; ++i) here[i] = tensor::ToBFloat16(value(first + i));
    } else {
      auto* const here = static_cast<float*>(pinned_->data());
      for (uint64_t i = 0; i < n_ * n_; ++i) here[i] = value(first + i);
    }
    const size_t bytes = n_ * n_ * SizeOf(options_.compute);
    stream_->RunAndWait([&] { stream_->Copy(to, pinned_->data(), bytes); });
    return stream_->Synchronize();
  }

  const ProductOptions& options_;
  const size_t n_;
  std::unique_ptr<device::Memory> pinned_, a_, b_, c_;
  std::unique_ptr<stream::Stream> stream_;  // ends before the memory
  std::unique_ptr<ops::Ops> ops_;
};

// Returns the first element of a row that is wrong, for people.
std::string WrongElement(const float* c, size_t n, size_t row) {
  for (size_t col = 0; col < n; ++col) {
    int64_t exact = 0;
    for (size_t k = 0; k < n; ++k) {
      exact += int64_t{WholeNumber(row * n + k)} * WholeNumber(n * n + k * n + col);
    }
    if (c[row * n + col] == static_cast<float>(exact)) continue;
    return absl::StrFormat("%.9g in row %d, column %d, expected %d", c[row * n + col], row, col,
                           exact);
  }
  return absl::StrCat("a wrong sum in row ", row);
}

// Returns what is wrong with the product of whole numbers; empty: nothing.
std::string FindWrongElement(const float* c, size_t n) {
  std::vector<int64_t> b_r(n, 0);
  for (size_t k = 0; k < n; ++k) {
    for (size_t j = 0; j < n; ++j) b_r[k] += WholeNumber(n * n + k * n + j) * Probe(j);
  }
  for (size_t i = 0; i < n; ++i) {
    int64_t expected = 0;
    double found = 0;  // exact as long as all elements are whole numbers
    for (size_t k = 0; k < n; ++k) {
      expected += WholeNumber(i * n + k) * b_r[k];
      found += static_cast<double>(c[i * n + k]) * static_cast<double>(Probe(k));
    }
    if (found != static_cast<double>(expected)) return WrongElement(c, n, i);
  }
  return "";
}

absl::Status CheckExact(Products& products, const ProductOptions& options, std::string* wrong) {
  const auto n = static_cast<size_t>(options.size);
  RETURN_IF_ERROR(
      products.SetFactors([](uint64_t i) { return static_cast<float>(WholeNumber(i)); }));
  RETURN_IF_ERROR(products.Multiply(1));
  ASSIGN_OR_RETURN(float* const c, products.Download());
  if (options.tamper) options.tamper(c, n * n * sizeof(float));
  *wrong = FindWrongElement(c, n);
  if (!wrong->empty()) *wrong = absl::StrCat("has the element ", *wrong);
  return absl::OkStatus();
}

absl::Status CheckRepeated(Products& products, const ProductOptions& options, std::string* wrong,
                           double* flops_per_second) {
  const auto n = static_cast<size_t>(options.size);
  RETURN_IF_ERROR(products.SetFactors(&Fraction));
  std::vector<float> first;
  absl::Duration taken;
  int64_t turns = 0;
  const absl::Duration end = Now() + options.budget;
  do {
    const absl::Duration begin = Now();
    RETURN_IF_ERROR(products.Multiply(kProductsPerTurn));
    taken += Now() - begin;
    ++turns;
    ASSIGN_OR_RETURN(float* const c, products.Download());
    if (turns == 1) {
      first.assign(c, c + n * n);
      continue;
    }
    if (options.tamper_repeated) options.tamper_repeated(c, n * n * sizeof(float));
    const auto differs = std::mismatch(first.begin(), first.end(), c, HasSameBits).first;
    if (differs == first.end()) continue;
    const auto at = static_cast<size_t>(differs - first.begin());
    *wrong = absl::StrFormat("has other bits the next time: %.9g, then %.9g, in row %d, column %d",
                             first[at], c[at], at / n, at % n);
  } while (wrong->empty() && (turns < 2 || Now() < end));
  *flops_per_second = 2.0 * static_cast<double>(n * n) * static_cast<double>(n) *
                      static_cast<double>(turns * kProductsPerTurn) /
                      std::max(1e-9, absl::ToDoubleSeconds(taken));
  return absl::OkStatus();
}

}  // namespace

PartResult CheckProducts(device::Device* device, const ProductOptions& options) {
  MEGASCALE_CHECK(options.compute == DType::kBF16 || options.compute == DType::kF32);
  MEGASCALE_CHECK(options.size > 0 && options.size <= kSizeMax);
  PartResult result;
  Products products(options);
  const absl::Status opened = products.Open(device);
  if (!opened.ok()) {
    result.note = std::string(opened.message());
    return result;
  }
  std::string wrong;
  absl::Status status = CheckExact(products, options, &wrong);
  if (status.ok() && wrong.empty()) {
    status = CheckRepeated(products, options, &wrong, &result.flops_per_second);
  }
  if (!status.ok()) {
    result.failure = absl::StrCat("the device failed: ", status.message());
  } else if (!wrong.empty()) {
    result.failure = absl::StrCat("a product in ", tensor::Name(options.compute), " ", wrong);
  }
  return result;
}

}  // namespace megascale::device::check

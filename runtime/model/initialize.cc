#include "runtime/model/initialize.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "runtime/base/check.h"

namespace megascale::model {
namespace {

using tensor::DType;
using tensor::HostVector;

// A block of one thread. Long ones are cut so that progress shows; short vectors, such as the
// pieces that go to a device one by one, are cut so that each thread has a part.
constexpr int64_t kBlockElementsMax = 1 << 20;
constexpr int64_t kBlockElementsMin = 1 << 14;  // takes many times as long as a thread's start
constexpr double kTwoPi = 2 * std::numbers::pi;

// The finaliser of splitmix64: a bijection on 64 bits with random-looking output. Source: Steele,
// Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

uint64_t KeyOf(uint64_t seed, absl::string_view name) {
  uint64_t key = Mix(seed);
  for (const char c : name) key = Mix(key ^ static_cast<unsigned char>(c));
  return key;
}

// Returns a uniform number in (0, 1], from 53 random bits; never 0, so that its logarithm exists.
double Uniform(uint64_t key, uint64_t counter) {
  return (static_cast<double>(Mix(key ^ Mix(counter)) >> 11) + 0.5) * 0x1p-53;
}

struct NormalPair {
  double even, odd;
};

// Returns standard normal numbers `even_index` and the one after it of a key's sequence, which
// share two uniform numbers (Box and Muller, 1958).
NormalPair Normals(uint64_t key, uint64_t even_index) {
  const double radius = std::sqrt(-2.0 * std::log(Uniform(key, even_index)));
  const double angle = kTwoPi * Uniform(key, even_index + 1);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

void Store(const HostVector& master, int64_t index, double value) {
  const float rounded = static_cast<float>(value);
  if (master.dtype() == DType::kF64) {
    master.as<double>()[index] = rounded;
  } else {
    master.as<float>()[index] = rounded;
  }
}

// Returns the standard deviation of a matrix's elements.
double RangeOf(const ModelConfig& config, const Parameter& parameter) {
  const bool writes_residual = absl::EndsWith(parameter.name, ".attn.out.weight") ||
                               absl::EndsWith(parameter.name, ".mlp.down.weight");
  return writes_residual
             ? config.init_range / std::sqrt(2.0 * static_cast<double>(config.num_layers))
             : config.init_range;
}

// Elements [first, first + count) of `master` get the normal numbers from `index` on.
void StoreNormals(uint64_t key, int64_t index, double range, const HostVector& master,
                  int64_t first, int64_t count) {
  for (int64_t i = 0; i < count;) {
    const int64_t even = (index + i) / 2 * 2;
    const NormalPair pair = Normals(key, static_cast<uint64_t>(even));
    if (even == index + i) Store(master, first + i++, range * pair.even);
    if (i < count) Store(master, first + i++, range * pair.odd);
  }
}

void InitializeBlock(const ModelConfig& config, const ChunkLayout& layout, uint64_t seed,
                     int64_t begin, const HostVector& master) {
  for (int64_t i = 0; i < master.size(); ++i) Store(master, i, 0.0);
  for (const ParameterSlice& slice : layout.SlicesOf({begin, master.size()})) {
    const Parameter& parameter = layout.parameters()[slice.parameter_index];
    const int64_t first = parameter.offset + slice.begin - begin;
    const bool is_matrix = parameter.shape.size() > 1;
    if (!is_matrix && absl::EndsWith(parameter.name, ".bias")) continue;
    const uint64_t key = KeyOf(seed, parameter.name);
    const double range = RangeOf(config, parameter);
    const ParameterBox& box = parameter.boxes[slice.box_index];
    const int64_t row = box.shape.back();
    for (int64_t done = 0; done < slice.count;) {
      const int64_t index_in_box = slice.begin_in_box + done;
      const int64_t rest_of_row = std::min(slice.count - done, row - index_in_box % row);
      if (is_matrix) {
        StoreNormals(key, GlobalIndex(parameter, box, index_in_box), range, master, first + done,
                     rest_of_row);
      } else {
        for (int64_t i = 0; i < rest_of_row; ++i) Store(master, first + done + i, 1.0);
      }
      done += rest_of_row;
    }
  }
}

}  // namespace

void InitializeParameters(const ModelConfig& config, const ChunkLayout& layout,
                          const InitializeOptions& options, int64_t begin,
                          const HostVector& master) {
  MEGASCALE_CHECK(master.dtype() == DType::kF32 || master.dtype() == DType::kF64);
  const int64_t share = master.size() / std::max(options.num_threads, 1) + 1;
  const int64_t block_elements = std::clamp(share, kBlockElementsMin, kBlockElementsMax);
  const int64_t num_blocks = (master.size() + block_elements - 1) / block_elements;
  std::atomic<int64_t> next_block = 0;
  const auto take_blocks = [&] {
    for (int64_t block = next_block++; block < num_blocks; block = next_block++) {
      const int64_t first = block * block_elements;
      const int64_t count = std::min(block_elements, master.size() - first);
      InitializeBlock(config, layout, options.seed, begin + first, master.Slice(first, count));
      if (options.on_progress) options.on_progress(count);
    }
  };
  const int64_t num_threads =
      std::clamp<int64_t>(options.num_threads, 1, std::max<int64_t>(num_blocks, 1));
  std::vector<std::thread> helpers;
  helpers.reserve(static_cast<size_t>(num_threads));
  try {
    for (int64_t i = 1; i < num_threads; ++i) helpers.emplace_back(take_blocks);
  } catch (const std::system_error& /*error*/) {
    // The system refused a thread: those that there are do the work.
  }
  take_blocks();
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace megascale::model

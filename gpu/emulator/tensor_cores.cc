// The host's twins of the instructions that a whole warp executes on matrices. The tables of
// fragments are those of the PTX ISA manual: sections "Matrix fragments for mma.m16n8k16 with
// floating point type" and "Warp-level matrix load instruction: ldmatrix".
#include <array>
#include <cstring>

#include "gpu/kernels/vocabulary.h"

namespace megascale::kernels::host {
namespace {

struct Element {
  int row = 0;
  int col = 0;
};

constexpr int Group(int lane) { return lane / 4; }
constexpr int InGroup(int lane) { return lane % 4; }

// a0 … a7 of A [16, 16]: rows are the group, plus 8 for a2, a3, a6, a7; columns are those of the
// lane in its group, plus 8 from a4 on.
constexpr Element PlaceInA(int lane, int i) {
  const bool is_low = i == 0 || i == 1 || i == 4 || i == 5;
  return {Group(lane) + (is_low ? 0 : 8), InGroup(lane) * 2 + i % 2 + (i < 4 ? 0 : 8)};
}
// b0 … b3 of B [16, 8].
constexpr Element PlaceInB(int lane, int i) {
  return {InGroup(lane) * 2 + i % 2 + (i < 2 ? 0 : 8), Group(lane)};
}
// c0 … c3 of C and D [16, 8].
constexpr Element PlaceInC(int lane, int i) {
  return {Group(lane) + (i < 2 ? 0 : 8), InGroup(lane) * 2 + i % 2};
}

// Element i of the registers, two to each.
float ElementOf(const uint32_t* registers, int i) {
  return ToFloat(BFloat16{static_cast<uint16_t>(registers[i / 2] >> (16 * (i % 2)))});
}

struct Product {
  float* d;
  const uint32_t* a;
  const uint32_t* b;
};

void Multiply(void* const* lanes) {
  std::array<std::array<float, 16>, 16> a = {};
  std::array<std::array<float, 8>, 16> b = {};
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto* args = static_cast<const Product*>(lanes[lane]);
    for (int i = 0; i < 8; ++i) {
      const Element at = PlaceInA(lane, i);
      a[static_cast<size_t>(at.row)][static_cast<size_t>(at.col)] = ElementOf(args->a, i);
    }
    for (int i = 0; i < 4; ++i) {
      const Element at = PlaceInB(lane, i);
      b[static_cast<size_t>(at.row)][static_cast<size_t>(at.col)] = ElementOf(args->b, i);
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto* args = static_cast<const Product*>(lanes[lane]);
    for (int i = 0; i < 4; ++i) {
      const Element at = PlaceInC(lane, i);
      float sum = args->d[i];
      for (size_t k = 0; k < 16; ++k) {
        sum += a[static_cast<size_t>(at.row)][k] * b[k][static_cast<size_t>(at.col)];
      }
      args->d[i] = sum;
    }
  }
}

struct Load {
  uint32_t* to;
  std::array<uint16_t, 8> row;  // that this lane's address points to
};

template <bool transposed>
void Distribute(void* const* lanes) {
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      uint32_t both = 0;
      for (int i = 0; i < 2; ++i) {
        const int group = Group(lane), in_group = InGroup(lane) * 2 + i;
        const int row = transposed ? in_group : group, col = transposed ? group : in_group;
        const auto* owner = static_cast<const Load*>(lanes[matrix * 8 + row]);
        both |= static_cast<uint32_t>(owner->row[static_cast<size_t>(col)]) << (16 * i);
      }
      static_cast<Load*>(lanes[lane])->to[matrix] = both;
    }
  }
}

}  // namespace

void MultiplyAdd(float* d, const uint32_t* a, const uint32_t* b, const Site& site) {
  Product product = {d, a, b};
  MeetLanes(&product, &Multiply, "a product of matrices", site);
}

void LoadMatrices(uint32_t* to, size_t row, bool transposed, const Site& site) {
  Load load = {to, {}};
  std::memcpy(load.row.data(), TouchShared(row, sizeof(load.row), 16, Access::kRead),
              sizeof(load.row));
  MeetLanes(&load, transposed ? &Distribute<true> : &Distribute<false>, "a load of matrices", site);
}

}  // namespace megascale::kernels::host

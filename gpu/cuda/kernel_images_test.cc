#include "gpu/cuda/kernel_images.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>

namespace megascale::cuda {
namespace {

// Files of this folder stand for what nvcc makes.
TEST(KernelImagesTest, HaveTheBytesOfTheirFiles) {
  const absl::Span<const KernelImage> images = KernelImages();
  ASSERT_EQ(images.size(), 2u);
  EXPECT_EQ(std::string(images[0].name), "README.md");
  EXPECT_EQ(std::string(images[1].name), "kernel_images.h");
  for (const KernelImage& image : images) {
    std::ifstream file("gpu/cuda/" + std::string(image.name), std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(file), {});
    EXPECT_EQ(std::string(static_cast<const char*>(image.data), image.size), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(image.data) % 64, 0u);
  }
}

}  // namespace
}  // namespace megascale::cuda

// SPDX-License-Identifier: Apache-2.0
//
// A small dataset that needs no download: ten digits of 5 x 3 points, each somewhere in an image
// of 6 x 4, with noise. The same seed gives the same digits.

#pragma once

#include <cstdint>

#include <torch/torch.h>

struct Digits {
  at::Tensor images;  // float32 [count, 24]
  at::Tensor labels;  // int64 [count], 0 to 9
};

inline Digits make_digits(int64_t count, uint64_t seed, double noise = 0.15) {
  const char* const kPoints[] = {"111101101101111", "010110010010111", "111001111100111",
                                 "111001111001111", "101101111001001", "111100111001111",
                                 "111100111101111", "111001010010010", "111101111101111",
                                 "111101111001111"};
  torch::manual_seed(seed);
  Digits digits{noise * torch::randn({count, 6, 4}), torch::randint(10, {count}, torch::kLong)};
  const at::Tensor rows = torch::randint(2, {count}, torch::kLong);
  const at::Tensor columns = torch::randint(2, {count}, torch::kLong);
  auto pixels = digits.images.accessor<float, 3>();
  for (int64_t i = 0; i < count; ++i) {
    const char* const points = kPoints[digits.labels.data_ptr<int64_t>()[i]];
    const int64_t row = rows.data_ptr<int64_t>()[i];
    const int64_t column = columns.data_ptr<int64_t>()[i];
    for (int64_t point = 0; point < 15; ++point) {
      if (points[point] == '1') pixels[i][row + point / 3][column + point % 3] += 1;
    }
  }
  digits.images = digits.images.flatten(1);
  return digits;
}

// The GPT-2 byte alphabet: every byte as a printable character.
//
//   33-126, 161-172, 174-255 stand for themselves; the other 68 bytes, in rising order, for U+0100 onward.
#pragma once

#include <array>
#include <cstdint>

namespace deepinfer::text {

struct ByteAlphabet {
  static constexpr uint32_t kNumLetters = 256 + 68;
  std::array<uint32_t, 256> letter_of{};
  std::array<int16_t, kNumLetters> byte_of{};  // -1: not a letter of the alphabet
};

constexpr ByteAlphabet make_byte_alphabet() {
  ByteAlphabet a;
  for (auto& b : a.byte_of) b = -1;
  uint32_t next = 0x100;
  for (uint32_t b = 0; b < 256; ++b) {
    bool is_itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    uint32_t letter = is_itself ? b : next++;
    a.letter_of[b] = letter;
    a.byte_of[letter] = static_cast<int16_t>(b);
  }
  return a;
}

inline constexpr ByteAlphabet kByteAlphabet = make_byte_alphabet();

}  // namespace deepinfer::text

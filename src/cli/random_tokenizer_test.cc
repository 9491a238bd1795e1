// A generated tokenizer loads, and its compressed vocabulary has the promised size.

#include "cli/random_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/compressed_vocabulary.h"
#include "text/tokenizer.h"
#include "weights/random_shapes.h"

namespace deepinfer {
namespace {

TEST(RandomTokenizer, CompressedVocabularyHasThePromisedSize) {
  for (const weights::ShapeOptions& options : {weights::ShapeOptions{.layers = 8},
                                               {.layers = 4, .vocab = 1000},
                                               {.layers = 4, .vocab = 30000, .compressed_vocab = 29971}}) {
    ModelConfig c = weights::random_shape("flash", options).value();
    auto json = random_tokenizer(c);
    ASSERT_TRUE(json) << json.error().message;
    auto tokenizer = text::Tokenizer::parse(*json);
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    EXPECT_EQ(tokenizer->num_ids(), c.vocab_size);
    EXPECT_EQ(text::compress_vocabulary(*tokenizer).size, c.engram_compressed_vocab_size);
    EXPECT_EQ(tokenizer->added_id("<｜deepseek_image｜>"), c.image_token_id);
    std::vector<int32_t> ids;
    const std::string sample = "hello World, 3 caf\xc3\xa9\n";
    tokenizer->encode(sample, ids);
    EXPECT_EQ(tokenizer->decode(ids), sample);
    EXPECT_LT(ids.size(), sample.size());
  }
}

TEST(RandomTokenizer, ImpossibleSizesAreRefused) {
  ModelConfig c = weights::random_shape("tiny", {}).value();
  c.engram_compressed_vocab_size = c.vocab_size;
  EXPECT_THAT(random_tokenizer(c).error().message, testing::HasSubstr("allowed are"));
  c = weights::random_shape("tiny", {}).value();
  c.image_token_id = c.pad_token_id;
  EXPECT_THAT(random_tokenizer(c).error().message, testing::HasSubstr("must differ"));
}

}  // namespace
}  // namespace deepinfer

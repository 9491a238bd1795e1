// The released configuration parses to known numbers; whatever changes the model's meaning is refused by name.

#include "weights/config.h"

#include <cmath>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weights/test_files.h"

namespace deepinfer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using weights::released_config;

// The released configuration after `edit` of its text_config.
Result<ModelConfig> parse_edited(const std::function<void(json::object& text)>& edit) {
  json::value v = released_config();
  edit(v.as_object()["text_config"].as_object());
  return parse_config(json::dump(v));
}

ModelConfig released() {
  return parse_config(json::dump(released_config())).value();
}

std::string message(const Result<ModelConfig>& r) {
  return r ? "accepted" : r.error().message;
}

TEST(Config, ReleasedValues) {
  ModelConfig c = released();
  EXPECT_EQ(c.num_blocks(), 43);
  EXPECT_EQ(c.compress_ratios.size(), 43u);
  EXPECT_EQ(c.image_token_id, 129264);
  EXPECT_EQ(c.rms_norm_eps, 1e-20);
  ASSERT_TRUE(c.rope_scaling);
  EXPECT_EQ(c.rope_scaling->original_max_position_embeddings, 65536);
  EXPECT_EQ(c.vision.num_hidden_layers, 32);
  EXPECT_THAT(c.unknown_keys, ElementsAre());
}

TEST(Config, SourcesOfLayers) {
  ModelConfig c = released();
  EXPECT_EQ(c.kv_source(1), -1);
  EXPECT_EQ(c.kv_source(2), 2);
  EXPECT_EQ(c.kv_source(13), 8);
  EXPECT_EQ(c.kv_source(39), 20);
  EXPECT_EQ(c.index_source(0), -1);
  EXPECT_EQ(c.index_source(23), 20);
  EXPECT_EQ(c.index_source(39), 36);
  EXPECT_EQ(c.engram_index(14), 1);
  EXPECT_EQ(c.engram_index(2), -1);
  EXPECT_EQ(c.num_experts(39), 384);
  EXPECT_EQ(c.num_experts(40), 128);
  EXPECT_EQ(c.boundary_layer(), 20);
}

TEST(Config, CacheSizes) {
  ModelConfig c = released();
  EXPECT_EQ(c.global_kv_bytes_per_token(), 890);
  EXPECT_EQ(c.global_kv_bytes_per_token(KvFormat::kFp8), 1490);
  EXPECT_EQ(c.global_kv_bytes(128), 113920);
  EXPECT_EQ(c.default_ring_slots(), 134);
  EXPECT_EQ(c.private_state_bytes(134), 3128352);
}

TEST(Config, GoldenAndTinyCheckpointsAreAccepted) {
  auto small = load_config(weights::golden("random-small/checkpoint"));
  ASSERT_TRUE(small) << message(small);
  EXPECT_EQ(small->boundary_layer(), 6);
  EXPECT_FALSE(small->has_vision());
}

TEST(Config, WrittenTextReadsBackTheSame) {
  ModelConfig c = released();
  c.gate_temp = 1.25;
  std::string text = config_json(c);
  auto again = parse_config(text);
  ASSERT_TRUE(again) << message(again);
  EXPECT_EQ(config_json(*again), text);
  // A negative zero is a zero, or its text would not be stable.
  auto negative = parse_edited([](json::object& t) { t["hc_eps"] = -0.0; });
  ASSERT_TRUE(negative) << message(negative);
  EXPECT_FALSE(std::signbit(negative->hc_eps));
  EXPECT_THAT(again->unknown_keys, ElementsAre());
}

TEST(Config, UnknownKeysAreReported) {
  json::value v = released_config();
  v.as_object()["text_config"].as_object()["new_trick"] = 7;
  v.as_object()["note"] = "hello";
  auto c = parse_config(json::dump(v));
  ASSERT_TRUE(c) << message(c);
  EXPECT_THAT(c->unknown_keys, ElementsAre("text_config.new_trick", "note"));
}

TEST(Config, UnknownArchitectureIsNamed) {
  json::value v = released_config();
  v.as_object()["architectures"] = json::array{"LlamaForCausalLM"};
  EXPECT_THAT(
      message(parse_config(json::dump(v))),
      testing::AllOf(HasSubstr("architectures"), HasSubstr("LlamaForCausalLM"), HasSubstr("DeepseekV41ForCausalLM")));
}

TEST(Config, EveryRequiredTextKeyIsMissed) {
  json::value original = released_config();
  for (const auto& entry : original.as_object()["text_config"].as_object()) {
    const std::string key(entry.key());
    auto c = parse_edited([&](json::object& t) { t.erase(key); });
    EXPECT_THAT(message(c), HasSubstr("text_config." + key + " is missing"));
    ASSERT_FALSE(c);
    EXPECT_EQ(exit_code(c.error()), 2);
  }
}

TEST(Config, EveryTextKeyRefusesAWrongType) {
  json::value original = released_config();
  for (const auto& entry : original.as_object()["text_config"].as_object()) {
    const std::string key(entry.key());
    for (const json::value& wrong : {json::value("seven"), json::value(json::object{}), json::value(-1.5)}) {
      auto c = parse_edited([&](json::object& t) { t[key] = wrong; });
      EXPECT_THAT(message(c), HasSubstr(key)) << json::dump(wrong);
    }
  }
}

struct BadValue {
  const char* key;
  json::value value;
};

TEST(Config, ValuesThatChangeTheModelAreRefused) {
  const BadValue cases[] = {{"num_key_value_heads", 2},
                            {"hidden_act", "gelu"},
                            {"n_shared_experts", 2},
                            {"scoring_func", "sigmoid"},
                            {"topk_method", "greedy"},
                            {"norm_topk_prob", false},
                            {"attention_bias", true},
                            {"attention_dropout", 0.1},
                            {"tie_word_embeddings", true},
                            {"hidden_size", 5100},
                            {"head_dim", 500},
                            {"q_lora_rank", 1},
                            {"moe_intermediate_size", 48},
                            {"index_head_dim", 100},
                            {"engram_head_dim", 16},
                            {"qk_rope_head_dim", 63},
                            {"qk_rope_head_dim", 256},
                            {"o_groups", 7},
                            {"sliding_window", 0},
                            {"sliding_window", 1025},
                            {"hc_mult", 0},
                            {"hc_mult", 9},
                            {"engram_max_ngram_size", 5},
                            {"engram_max_ngram_size", 1},
                            {"dspark_block_size", 0},
                            {"dspark_block_size", 33},
                            {"num_experts_per_tok", 385},
                            {"dspark_noise_token_id", 129280},
                            {"engram_pad_token_id", -1},
                            {"num_hidden_layers", 0},
                            {"vocab_size", 0},
                            {"hc_shifted", false},
                            {"use_fp4_sparse_kv", false},
                            {"yoco_swa_share_hidden", true},
                            {"dspark_target_attn_input", false},
                            {"gate_temp", 0},
                            {"index_k_source_layer_ids", json::array{2}},
                            {"model_type", "deepseek_v4_text"}};
  for (const BadValue& bad : cases) {
    auto c = parse_edited([&](json::object& t) { t[bad.key] = bad.value; });
    EXPECT_THAT(message(c), HasSubstr(bad.key)) << json::dump(bad.value);
  }
}

TEST(Config, OtherQuantisationIsRefused) {
  for (const BadValue& bad : {BadValue{"weight_block_size", json::array{128, 128}},
                              {"scale_fmt", "fp32"},
                              {"expert_dtype", "fp8"},
                              {"activation_scheme", "static"},
                              {"quant_method", "awq"}}) {
    json::value v = released_config();
    v.as_object()["quantization_config"].as_object()[bad.key] = bad.value;
    EXPECT_THAT(message(parse_config(json::dump(v))), HasSubstr(bad.key));
  }
}

TEST(Config, InconsistentListsAreRefused) {
  auto list = [](std::initializer_list<int> ids) { return json::array(ids.begin(), ids.end()); };
  // Ratio of a source differs from that of its readers.
  EXPECT_THAT(message(parse_edited([](json::object& t) { t["compress_ratios"].as_array()[2] = 1; })),
              HasSubstr("layer 3"));
  EXPECT_THAT(message(parse_edited([](json::object& t) { t["compress_ratios"].as_array()[8] = 0; })),
              HasSubstr("source layer 8"));
  EXPECT_THAT(message(parse_edited([](json::object& t) { t["compress_ratios"].as_array()[1] = 2; })),
              HasSubstr("layer 1"));
  EXPECT_THAT(message(parse_edited([](json::object& t) { t["compress_ratios"].as_array()[41] = 1; })),
              HasSubstr("draft stage 1"));
  EXPECT_THAT(message(parse_edited([](json::object& t) { t["compress_ratios"].as_array()[5] = 3; })),
              HasSubstr("contains 3"));
  EXPECT_THAT(message(parse_edited([](json::object& t) { t["compress_ratios"].as_array().pop_back(); })),
              HasSubstr("42 entries"));
  // Sources.
  EXPECT_THAT(message(parse_edited([&](json::object& t) { t["kv_source_layer_ids"] = list({2, 8, 14}); })),
              HasSubstr("layer 20"));
  EXPECT_THAT(message(parse_edited([&](json::object& t) { t["kv_source_layer_ids"] = list({8, 2, 14, 20}); })),
              HasSubstr("ascending"));
  EXPECT_THAT(message(parse_edited([&](json::object& t) { t["kv_source_layer_ids"] = list({2, 8, 14, 40}); })),
              HasSubstr("contains 40"));
  EXPECT_THAT(message(parse_edited([&](json::object& t) { t["index_source_layer_ids"] = list({2, 14, 20}); })),
              HasSubstr("KV source 8"));
  EXPECT_THAT(message(parse_edited([](json::object& t) { t["candidate_source_layer_id"] = 21; })),
              HasSubstr("candidate_source_layer_id is 21"));
  EXPECT_THAT(message(parse_edited([](json::object& t) { t["candidate_source_layer_id"] = 14; })),
              HasSubstr("candidate_source_layer_id is 14"));
  // Engram and draft.
  EXPECT_THAT(
      message(parse_edited([&](json::object& t) { t["engram_num_embeddings"] = list({384006168, 384016683}); })),
      HasSubstr("384016682"));
  EXPECT_THAT(message(parse_edited([&](json::object& t) { t["engram_num_embeddings"] = list({384006168}); })),
              HasSubstr("engram_num_embeddings"));
  EXPECT_THAT(message(parse_edited([&](json::object& t) { t["engram_layer_ids"] = list({1, 40}); })),
              HasSubstr("engram_layer_ids"));
  EXPECT_THAT(message(parse_edited([&](json::object& t) { t["dspark_target_layer_ids"] = list({37, 37}); })),
              HasSubstr("dspark_target_layer_ids"));
  EXPECT_THAT(message(parse_edited([&](json::object& t) { t["dspark_target_layer_ids"] = list({}); })),
              HasSubstr("dspark_target_layer_ids"));
}

TEST(Config, OptionalMechanismsMayBeAbsent) {
  auto no_draft = parse_edited([](json::object& t) {
    t["num_nextn_predict_layers"] = 0;
    t["compress_ratios"].as_array().resize(40);
    for (const char* key : {"dspark_block_size", "dspark_target_layer_ids", "dspark_markov_rank"}) t.erase(key);
  });
  ASSERT_TRUE(no_draft) << message(no_draft);
  EXPECT_EQ(no_draft->default_ring_slots(), 129);
  auto no_engram = parse_edited([](json::object& t) {
    t["engram_layer_ids"] = json::array{};
    t["engram_num_embeddings"] = json::array{};
  });
  EXPECT_TRUE(no_engram) << message(no_engram);
  auto no_candidates = parse_edited([](json::object& t) {
    t["candidate_source_layer_id"] = -7;
    t.erase("candidate_topk_blocks");
  });
  ASSERT_TRUE(no_candidates) << message(no_candidates);
  EXPECT_EQ(no_candidates->candidate_source_layer_id, -1);
  auto no_scaling = parse_edited([](json::object& t) { t["rope_scaling"] = nullptr; });
  ASSERT_TRUE(no_scaling) << message(no_scaling);
  EXPECT_FALSE(no_scaling->rope_scaling);
  auto window_only = parse_edited([](json::object& t) {
    for (auto& r : t["compress_ratios"].as_array()) r = 0;
    t["kv_source_layer_ids"] = json::array{};
    t["index_source_layer_ids"] = json::array{};
    t["candidate_source_layer_id"] = -1;
  });
  ASSERT_TRUE(window_only) << message(window_only);
  EXPECT_EQ(window_only->global_kv_bytes(128), 0);
  EXPECT_EQ(window_only->boundary_layer(), -1);
}

TEST(Config, TruncationNeedsAnUndividedBoundary) {
  ModelConfig c = released();
  c.dspark_target_layer_ids = {19, 38};
  EXPECT_THAT(c.truncation_obstacle(), HasSubstr("both sides"));
  EXPECT_EQ(c.boundary_layer(), -1);
  c.dspark_target_layer_ids = {20, 38};
  EXPECT_EQ(c.boundary_layer(), 20);
  c.engram_layer_ids = {1, 20};
  EXPECT_THAT(c.truncation_obstacle(), HasSubstr("Engram layer 20"));
  c = released();
  c.kv_source_layer_ids = {2, 8, 14, 20, 24};
  EXPECT_THAT(c.truncation_obstacle(), HasSubstr("last KV source 24"));
}

TEST(Config, UnreadableDirectoryAndBadTextAreUserErrors) {
  auto missing = load_config("/nonexistent/model");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::kNotFound);
  EXPECT_EQ(exit_code(missing.error()), 2);
  EXPECT_FALSE(parse_config("{\"architectures\": "));
  EXPECT_FALSE(parse_config("[1]"));
  EXPECT_FALSE(parse_config(std::string(100000, '[')));
}

}  // namespace
}  // namespace deepinfer

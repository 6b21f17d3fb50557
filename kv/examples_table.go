package kv

const (
	// latentPage is the pages that FlashMLA takes, on any engine.
	latentPage = 64
	// compressedPage is the pages of models with one row for 128 tokens, which hold
	// whole rows.
	compressedPage = 256
)

// examples is the published deployments. Where a source gives a TP of all ranks
// and a DP that is no more than it, and as many GPUs as the TP, the DP ranks share
// the TP ranks.
var examples = []exampleRow{
	{"sglang-doc-llama", "llama-3.1-8b", sglang, exampleSide{instances: 1}, exampleSide{instances: 1}, "the first example of SGLang's manual: two GPUs of one node"},
	{"sglang-doc-dsv3", "deepseek-v3", sglang, exampleSide{instances: 1, tp: 16, dp: 8, attention: true}, exampleSide{instances: 1, tp: 16, dp: 8, attention: true},
		"SGLang's manual: two nodes on each side"},
	{"sglang-96h100", "deepseek-v3", sglang, exampleSide{instances: 1, tp: 32, dp: 32, attention: true}, exampleSide{instances: 1, tp: 72, dp: 72, attention: true},
		"12 nodes of 8 H100: one large decode instance of 72 ranks"},
	{"deepseek-official", "deepseek-r1", sglang, exampleSide{tp: 32, dp: 32, attention: true}, exampleSide{tp: 144, dp: 144, attention: true},
		"the units of DeepSeek's own service, by its report; the engine is its own, too"},
	{"sglang-ascend-r1-1p1d", "deepseek-r1", sglang, exampleSide{instances: 1, tp: 16, dp: 8, attention: true}, exampleSide{instances: 1, tp: 16, dp: 16, attention: true},
		"32 Ascend dies"},
	{"sglang-k3-pp16", "kimi-k3", sglang, exampleSide{instances: 1, pp: 16}, exampleSide{tp: 16},
		"deep stages of one GPU each for prefill; decode is also run at tp 8 and 32"},

	{"dynamo-r1-trtllm-gb200", "deepseek-r1", trtllm, exampleSide{instances: 1, tp: 4, dp: 4, attention: true}, exampleSide{instances: 1, tp: 32, dp: 32, attention: true},
		"wide expert parallelism on GB200"},
	{"dynamo-r1-sglang", "deepseek-r1", sglang, exampleSide{instances: 1, tp: 8}, exampleSide{instances: 1, tp: 8, dp: 8, attention: true}, "TP to DP attention, on 16 H200"},
	{"dynamo-r1-vllm-hopper", "deepseek-r1", vllm.pages(latentPage), exampleSide{instances: 1, dp: 16}, exampleSide{instances: 1, dp: 16}, "DP of single GPUs on both sides"},
	{"dynamo-llama70b-mn", "llama-3.3-70b", vllm.pages(128), exampleSide{instances: 1, tp: 8}, exampleSide{instances: 1, tp: 8}, "a node on each side"},
	{"dynamo-llama70b-sn", "llama-3.3-70b", vllm, exampleSide{instances: 2, tp: 2}, exampleSide{instances: 1, tp: 4}, "one node of 8 GPUs"},
	{"dynamo-qwen3-32b-a100", "qwen3-32b", vllm, exampleSide{instances: 2, tp: 2}, exampleSide{instances: 1, tp: 4}, "one node of 8 A100"},
	{"dynamo-gptoss-trtllm", "gpt-oss-120b", trtllm, exampleSide{instances: 1}, exampleSide{instances: 1, tp: 4}, "windows on every other layer"},
	{"dynamo-gptoss-vllm-b200", "gpt-oss-120b", vllm, exampleSide{instances: 2}, exampleSide{instances: 6}, "decode-heavy: two prefill, six decode GPUs"},
	{"dynamo-glm5", "glm-5", sglang, exampleSide{instances: 1, tp: 4, noDraft: true}, exampleSide{instances: 1, tp: 16, dp: 16, attention: true}, "a draft model on decode alone"},
	{"dynamo-kimi-k2.5", "kimi-k2.5", trtllm, exampleSide{instances: 3, tp: 4, dp: 4, attention: true}, exampleSide{instances: 3, tp: 4}, "DP attention to TP"},
	{"dynamo-kimi-k3-gb200", "kimi-k3", vllm, exampleSide{instances: 1, tp: 16}, exampleSide{instances: 1, tp: 16}, "latents and the state of linear attention"},
	{"dynamo-dsv4-flash-b200", "deepseek-v4-flash", vllm.pages(compressedPage), exampleSide{instances: 2, tp: 4}, exampleSide{instances: 1, tp: 4},
		"compressed rows; how the four GPUs of a worker divide is inferred"},
	{"dynamo-dsv4-pro", "deepseek-v4-pro", vllm.pages(compressedPage), exampleSide{instances: 1, tp: 8}, exampleSide{instances: 1, tp: 8}, "compressed rows; three decode instances on H200"},
	{"dynamo-qwen3.5-122b", "qwen3.5-122b-a10b", vllm, exampleSide{instances: 1, noDraft: true}, exampleSide{instances: 2, noDraft: true}, "linear attention; the recipe turns the draft model off"},
	{"dynamo-nemotron3-super", "nemotron-3-super-120b-a12b", trtllm, exampleSide{instances: 1, tp: 2}, exampleSide{instances: 1, tp: 2}, "the state of Mamba-2"},

	{"llmd-pd", "gpt-oss-120b", vllm, exampleSide{instances: 8}, exampleSide{instances: 2, tp: 4}, "the guide of llm-d"},
	{"llmd-wide-ep", "deepseek-r1", vllm.pages(latentPage), exampleSide{instances: 1, dp: 16}, exampleSide{instances: 1, dp: 16}, "the guide of llm-d for wide expert parallelism"},
	{"llmd-bench-1", "qwen3-32b", vllm.pages(128), exampleSide{instances: 8}, exampleSide{instances: 1, tp: 8}, "8 x tp 1 to tp 8: 16 GPUs, divided six ways"},
	{"llmd-bench-2", "qwen3-32b", vllm.pages(128), exampleSide{instances: 4, tp: 2}, exampleSide{instances: 1, tp: 8}, "4 x tp 2 to tp 8: the same 16 GPUs"},
	{"llmd-bench-3", "qwen3-32b", vllm.pages(128), exampleSide{instances: 2, tp: 4}, exampleSide{instances: 1, tp: 8}, "2 x tp 4 to tp 8: the same 16 GPUs"},
	{"llmd-bench-4", "qwen3-32b", vllm.pages(128), exampleSide{instances: 6, tp: 2}, exampleSide{instances: 1, tp: 4}, "6 x tp 2 to tp 4: the same 16 GPUs"},
	{"llmd-bench-5", "qwen3-32b", vllm.pages(128), exampleSide{instances: 4, tp: 2}, exampleSide{instances: 2, tp: 4}, "4 x tp 2 to 2 x tp 4: the same 16 GPUs"},
	{"llmd-bench-6", "qwen3-32b", vllm.pages(128), exampleSide{instances: 2, tp: 2}, exampleSide{instances: 3, tp: 4}, "2 x tp 2 to 3 x tp 4: the same 16 GPUs"},
	{"aiconf-qwen3-32b", "qwen3-32b", trtllm, exampleSide{instances: 2, tp: 2}, exampleSide{instances: 1, tp: 4}, "what a planner makes of 32 H200, four times over"},
	{"mooncake-vllm-bench", "qwen3-8b", vllm, exampleSide{instances: 1, tp: 8}, exampleSide{instances: 1, tp: 8}, "4.5 GiB of 32,768 tokens in 31.65 ms, measured"},
	{"prodstack-pd", "llama-3.1-8b", vllm, exampleSide{instances: 1}, exampleSide{instances: 1}, "a tutorial: two GPUs"},

	{"user-glm5.1-pp4", "glm-5.1", sglang, exampleSide{instances: 1, tp: 8, pp: 4}, exampleSide{instances: 1, tp: 8, dp: 8, attention: true},
		"reported: bad answers after some hundred requests (sglang#23020)"},
	{"user-llama70b-p4d1", "llama-3.1-70b", vllm, exampleSide{instances: 3, tp: 4}, exampleSide{instances: 4}, "reported: decode crashes at the first request (vllm#43523)"},
	{"user-gemma4-p2d4", "gemma-4-26b-a4b", vllm, exampleSide{instances: 2, tp: 2}, exampleSide{instances: 1, tp: 4},
		"reported: two groups of heads break the handshake (vllm#50765)"},
	{"user-qwen3.5-p4d8", "qwen3.5-35b-a3b", vllm, exampleSide{instances: 1, tp: 4, page: 32}, exampleSide{instances: 1, dp: 8, page: 16},
		"reported: pages of two sizes give wrong answers (vllm#42895); which Qwen3.5 is not said"},
	{"user-qwen3-32b-p2d1", "qwen3-32b", sglang, exampleSide{instances: 1, tp: 2}, exampleSide{instances: 1}, "reported: crashes under load, MLA does not (sglang#15674)"},
}

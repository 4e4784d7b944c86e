//! A small model over bytes, requests, and their completions made plainly, one after the other.

use arena::Executor;
use canon::random::{Numbers, Purpose};
use engine::{Advance, Blueprint, Engine, GenerateShape, Job, Sampler, Sampling};
use families::{BuildOptions, Train};
use formats::ModelConfig;
use formats::gguf::{Array, Metadata, Value};
use program::ops::PAGE;
use program::{DType, Graph, Op, Program, Rank, Topology};
use rollout::{Completion, Ending, Request, RolloutError, Scheduler, Stops};
use text::Tokenizer;

/// The 256 bytes and an end marker.
pub(crate) const WORDS: usize = 257;

/// The end marker.
pub(crate) const END: u32 = 256;

/// Tokens of the longest sequence.
pub(crate) const LENGTH: usize = 300;

/// A qwen3 of two layers with eight key/value heads.
pub(crate) fn graph() -> Graph {
    graph_of(Train::Nothing, DType::F32)
}

/// The same to train, or with weights stored in another type.
pub(crate) fn graph_of(train: Train, weights: DType) -> Graph {
    let json = serde_json::json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu",
        "vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 8,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 512,
        "tie_word_embeddings": false, "attention_bias": false,
    });
    let config = ModelConfig::from_json(json.as_object().unwrap().clone()).unwrap();
    let options = BuildOptions { train, weights, ..BuildOptions::default() };
    families::build(&config, &options).unwrap().graph
}

/// Gives every parameter its random values; another seed, other weights.
pub(crate) fn load(engine: &mut Engine<'_>, seed: u64) {
    for id in engine.graph.param_ids() {
        let param = engine.graph.param_info(id);
        let mut values = vec![0f32; param.padded_rows * param.cols];
        let (low, high) = if param.name.contains("norm") { (0.5, 1.5) } else { (-0.3, 0.3) };
        let numbers = Numbers::new(seed, Purpose::Init, u64::from(id.0));
        numbers.fill_uniform(0, low, high, &mut values[..param.elements()]);
        engine.write_whole(id, &values);
    }
}

pub(crate) fn executor(threads: usize) -> Box<dyn Executor> {
    let settings = cpu::Settings { threads, precision: cpu::Precision::F32, isa: None };
    Box::new(cpu::Cpu::new(settings).unwrap())
}

/// One rank's engine with the weights of seed 3.
pub(crate) fn engine(shape: GenerateShape) -> Engine<'static> {
    engine_of(graph(), shape)
}

/// The same over a graph.
pub(crate) fn engine_of(graph: Graph, shape: GenerateShape) -> Engine<'static> {
    let executor = executor(2);
    let job = Job { generate: Some(shape), ..Job::default() };
    let workspace = |op: &Op, program: &Program| executor.workspace_bytes(op, program);
    let blueprint = Blueprint::new(&graph, Topology::single(), Rank::FIRST, job, &workspace);
    let mut engine = Engine::new(graph, blueprint, executor).unwrap();
    load(&mut engine, 3);
    engine
}

/// A shape with a cache of so many pages.
pub(crate) fn shape(sequences: usize, tokens: usize, pages: usize) -> GenerateShape {
    GenerateShape { sequences, length: LENGTH, tokens, pages, interleave: 1 }
}

/// `count` random bytes.
pub(crate) fn bytes(stream: u64, count: usize) -> Vec<u32> {
    let numbers = Numbers::new(5, Purpose::Sample, stream);
    (0..count as u64).map(|i| numbers.below(i, 256) as u32).collect()
}

/// A sampled request that ends at the end marker or one of a few bytes, so that lengths differ.
pub(crate) fn request(sample: u64, prompt: Vec<u32>, max_tokens: usize) -> Request {
    let sampling = Sampling { temperature: 1.0, top_p: 0.95, seed: 17, ..Sampling::default() };
    let stops = Stops { ids: vec![END, 10, 200], texts: vec![] };
    Request { sample, prompt, max_tokens, sampling, stops, policy: false }
}

/// Prompts of many lengths; four samples of one of them, and three that begin alike.
pub(crate) fn requests() -> Vec<Request> {
    let mut prompts = vec![bytes(0, 1), bytes(1, 63), bytes(2, 64), bytes(3, 65), bytes(4, 190)];
    prompts.extend([(); 4].map(|()| bytes(5, 140)));
    prompts.extend((6..9).map(|tail| [bytes(10, 128), bytes(tail, 5 * tail as usize)].concat()));
    let number = |(index, prompt)| request(index as u64, prompt, 90);
    prompts.into_iter().enumerate().map(number).collect()
}

/// What must be the same in every completion of a request.
#[derive(Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) ids: Vec<u32>,
    pub(crate) logprobs: Vec<u32>,
    pub(crate) ending: Ending,
}

impl From<Completion> for Outcome {
    fn from(completion: Completion) -> Outcome {
        let logprobs = completion.logprobs.iter().map(|p| p.to_bits()).collect();
        Outcome { ids: completion.ids, logprobs, ending: completion.ending }
    }
}

/// A request alone: its prompt in one pass, then a token at a time, in a cache of its own; log-probs by scoring.
fn plain(engine: &mut Engine<'_>, request: &Request) -> Outcome {
    let pages = engine.blueprint.job.generate.unwrap().slot(0);
    let mut sampler = Sampler::new(request.sampling, request.sample).unwrap();
    let mut tokens = request.prompt.clone();
    let mut past = 0;
    let ending = loop {
        let work = Advance { pages: &pages, past, ids: &tokens[past..], logits: true };
        let logits = engine.advance(&[work]).unwrap().swap_remove(0);
        past = tokens.len();
        let id = sampler.choose(&logits, past as u64).unwrap();
        tokens.push(id);
        if request.stops.ids.contains(&id) {
            break Ending::EndToken;
        }
        let chosen = tokens.len() - request.prompt.len();
        if chosen == request.max_tokens || tokens.len() == LENGTH {
            break Ending::Length;
        }
    };
    let flags: Vec<bool> = (0..tokens.len()).map(|t| t >= request.prompt.len()).collect();
    let sequence = engine::Sequence::next_tokens(&tokens, &flags);
    let scored = engine.score(&engine::MicroBatch { sequences: vec![sequence] }).unwrap();
    let first = request.prompt.len() - 1;
    let logprobs = scored[first..tokens.len() - 1].iter().map(|p| p.to_bits()).collect();
    Outcome { ids: tokens.split_off(request.prompt.len()), logprobs, ending }
}

/// Every request alone.
pub(crate) fn references(requests: &[Request]) -> Vec<Outcome> {
    let (graph, executor) = (graph(), executor(2));
    let shape = GenerateShape::full(1, LENGTH, LENGTH);
    let job = Job { generate: Some(shape), score: Some((LENGTH, 1)), ..Job::default() };
    let workspace = |op: &Op, program: &Program| executor.workspace_bytes(op, program);
    let blueprint = Blueprint::new(&graph, Topology::single(), Rank::FIRST, job, &workspace);
    let mut engine = Engine::new(graph, blueprint, executor).unwrap();
    load(&mut engine, 3);
    requests.iter().map(|request| plain(&mut engine, request)).collect()
}

/// Submits all and runs them to their ends.
pub(crate) fn run(
    scheduler: &mut Scheduler<'_>,
    engine: &mut Engine<'_>,
    requests: &[Request],
) -> Result<Vec<Completion>, RolloutError> {
    for request in requests {
        scheduler.submit(request.clone())?;
    }
    scheduler.run(engine, |_| Ok(()))
}

/// Pages of the longest sequence.
pub(crate) const PAGES_EACH: usize = LENGTH.div_ceil(PAGE);

/// A tokenizer of one token a byte, and the end marker.
pub(crate) fn tokenizer() -> Tokenizer {
    tokenizer_of(257)
}

/// The first `words` of its words.
pub(crate) fn tokenizer_of(words: usize) -> Tokenizer {
    // GPT-2's alphabet: printable bytes stand for themselves, the others for characters from U+0100 on.
    let printable = |b: u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut others = 0x100..;
    let mut tokens: Vec<String> = (0..256)
        .map(|byte| if printable(byte) { byte } else { others.next().unwrap() })
        .map(|code| char::from_u32(code).unwrap().to_string())
        .collect();
    tokens.push("<|end|>".into());
    tokens.truncate(words);
    let types = [vec![1; 256], vec![3]].concat()[..words].to_vec();
    let mut metadata = Metadata::default();
    for (key, value) in [
        ("model", Value::String("gpt2".into())),
        ("pre", Value::String("qwen2".into())),
        ("tokens", Value::Array(Array::String(tokens))),
        ("token_type", Value::Array(Array::I32(types))),
        ("merges", Value::Array(Array::String(vec![]))),
    ] {
        metadata.insert(format!("tokenizer.ggml.{key}"), value).unwrap();
    }
    Tokenizer::from_gguf(&metadata).unwrap()
}

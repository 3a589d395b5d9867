//! The worker's command line: Dynamo's common options and those of Kvasir's engine.

use crate::engine::{EngineSetup, KvasirEngine};
use crate::failure::invalid;
use clap::Parser;
use dynamo_backend_common::{CommonArgs, DisaggregationMode, DynamoError, WorkerConfig};
use kvasir::CacheKind;
use kvasir_engine::EngineConfig;
use std::{net::SocketAddr, path::PathBuf};

/// A worker of NVIDIA Dynamo with Kvasir's engine in its process.
#[derive(Clone, Debug, Parser)]
#[command(name = "kvasir-dynamo", version)]
pub struct Arguments {
    #[command(flatten)]
    common: CommonArgs,
    /// Directory in the Hugging Face layout from which Dynamo's frontend takes tokenizer and chat template, and
    /// Kvasir the weights unless --weights is given
    #[arg(long, env = "KVASIR_MODEL_PATH")]
    model_path: PathBuf,
    /// GGUF file or directory with the weights; `built-in` is the built-in model
    #[arg(long, env = "KVASIR_WEIGHTS")]
    weights: Option<PathBuf>,
    /// Public name of the model [default: the directory's]
    #[arg(long, env = "KVASIR_MODEL_NAME")]
    model_name: Option<String>,
    /// Threads [default: one per core]
    #[arg(long, env = "KVASIR_THREADS")]
    threads: Option<usize>,
    /// KV cache capacity in tokens [default: from the free memory]
    #[arg(long, env = "KVASIR_KV_CAPACITY")]
    kv_capacity: Option<u32>,
    /// Tokens per block, 1 to 256 [default: 16]
    #[arg(long, env = "KVASIR_BLOCK_SIZE")]
    block_size: Option<u32>,
    /// Maximum prompt plus output tokens [default: the model's]
    #[arg(long, env = "KVASIR_MAX_MODEL_LEN")]
    max_model_len: Option<u32>,
    /// Maximum running requests [default: 512]
    #[arg(long, env = "KVASIR_MAX_NUM_SEQS")]
    max_num_seqs: Option<u32>,
    /// Address on which the engine publishes KV events to Dynamo's runtime in this process
    #[arg(long, env = "KVASIR_KV_EVENTS_ADDRESS", default_value = "127.0.0.1:0")]
    kv_events: SocketAddr,
}

impl Arguments {
    /// Parses the command line, and builds its engine and worker configuration.
    pub fn engine() -> Result<(KvasirEngine, WorkerConfig), DynamoError> {
        Self::parse().into_engine()
    }

    /// An engine that is not started, and Dynamo's configuration of the worker.
    pub fn into_engine(self) -> Result<(KvasirEngine, WorkerConfig), DynamoError> {
        let Self { common, model_path, weights, model_name, .. } = self;
        if common.disaggregation_mode != DisaggregationMode::Aggregated {
            return Err(invalid(
                "--disaggregation-mode: Kvasir prefills and decodes in one worker; use `agg`",
            ));
        }
        let folder = model_path.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = model_name.or(folder).ok_or_else(|| {
            invalid("--model-path has no last component, so the model has no name; set --model-name")
        })?;
        let weights = weights.unwrap_or_else(|| model_path.clone());
        let setup = EngineSetup {
            model: (weights.as_os_str() != "built-in").then_some(weights),
            name: name.clone(),
            threads: self.threads,
            config: EngineConfig {
                cache: Some(CacheKind::Paged),
                kv_capacity: self.kv_capacity,
                block_size: self.block_size,
                max_model_len: self.max_model_len,
                max_num_seqs: self.max_num_seqs,
                ..EngineConfig::default()
            },
            kv_events: self.kv_events,
        };
        let worker = WorkerConfig {
            namespace: common.namespace,
            component: common.component,
            endpoint: common.endpoint,
            model_name: model_path.to_string_lossy().into_owned(),
            served_model_name: Some(name),
            endpoint_types: common.endpoint_types,
            custom_jinja_template: common.custom_jinja_template,
            tool_call_parser: common.dyn_tool_call_parser,
            reasoning_parser: common.dyn_reasoning_parser,
            exclude_tools_when_tool_choice_none: common.exclude_tools_when_tool_choice_none,
            disaggregation_mode: common.disaggregation_mode,
            route_to_encoder: common.route_to_encoder,
            enable_rl: common.enable_rl,
            runtime: common.runtime,
            ..WorkerConfig::default()
        };
        Ok((KvasirEngine::new(setup), worker))
    }
}

//! `kvasir-dynamo`: a worker for NVIDIA Dynamo with Kvasir's engine in its process.
//!
//! Dynamo's frontend serves HTTP, tokenizes and routes. It sends token ids to this worker, which
//! returns token ids. KV events reach Dynamo's router over ZMQ, in vLLM's wire format.

use dynamo_backend_common::run;
use kvasir_dynamo::Arguments;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (engine, config) = Arguments::engine()?;
    Ok(run(Arc::new(engine), config)?)
}

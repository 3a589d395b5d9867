use super::{Failure, model::ModelArgs};
use crate::options::{Facts, Options};
use kvasir::Loaded;
use kvasir_sample::Sampling;
use kvasir_serve::{
    host::Host,
    http::{App, Keys, serve},
    model::{self, Model},
};
use std::{
    net::{IpAddr, SocketAddr},
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{net::TcpListener, signal};

/// Slots of a pool that nobody gave a size: a desk's memory is shared with everything else on it.
const DESK_SLOTS: u32 = 32768;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1", env = "KVASIR_HOST")]
    host: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 8000, env = "KVASIR_PORT")]
    port: u16,
    /// A key that clients must show, on every route but /live; may be given several times
    #[arg(long, env = "KVASIR_API_KEY", hide_env_values = true, value_name = "KEY", value_delimiter = ',')]
    api_key: Vec<String>,
    /// What clients call the model; its file's or folder's name unless given
    #[arg(long, env = "KVASIR_MODEL_NAME", value_name = "NAME")]
    model_name: Option<String>,
    #[command(flatten)]
    options: Options,
    /// Seconds that answers under way may take after SIGTERM
    #[arg(long, default_value_t = 30, env = "KVASIR_GRACE", value_name = "SECONDS")]
    grace: u64,
}

impl Args {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let started = Instant::now();
        if let Some(empty) = self.api_key.iter().position(|key| key.is_empty()) {
            return Err(Failure::usage(format!("--api-key: key {} is empty", empty + 1)));
        }
        let loaded = self.model.load()?;
        let max_model_len = u32::try_from(loaded.program().max_positions).unwrap_or(u32::MAX);
        let slots =
            loaded.slots_in_memory(self.options.memory_share()?).map_or(DESK_SLOTS, |s| s.min(DESK_SLOTS));
        let settled = self.options.settle(Facts { max_model_len, slots, is_cpu: true })?;
        let overlap = settled.overlap;
        let engine = loaded.engine(settled.core(), overlap)?;
        let max_len = engine.core().limits().max_model_len.min(engine.core().cache().capacity());
        let model = self.served(&loaded, max_len)?;
        let (backend, slots) = (loaded.backend(), engine.core().cache().capacity());
        drop(loaded);
        let host = Host::start(engine).map_err(Failure::failed)?;
        let address = SocketAddr::new(self.host, self.port);
        let name = model.name.clone();
        let app = App::new(Arc::new(model), host, Keys::new(self.api_key));
        // The engine has a thread of its own; what is left is reading and writing, which two threads do well.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.map_err(Failure::failed)?.block_on(async {
            let listener = TcpListener::bind(address).await;
            let listener =
                listener.map_err(|e| Failure::failed(format!("cannot listen on {address}: {e}")))?;
            let address = listener.local_addr().map_err(Failure::failed)?;
            eprintln!(
                "kvasir: {name} on {backend}, {slots} slots, http://{address}, ready after {:.2} s",
                started.elapsed().as_secs_f64()
            );
            serve(app, listener, told_to_stop(), Duration::from_secs(self.grace))
                .await
                .map_err(Failure::failed)
        })?;
        Ok(ExitCode::SUCCESS)
    }

    /// The model as the server sees it.
    fn served(&self, loaded: &Loaded, max_len: u32) -> Result<Model, Failure> {
        let name = self.model_name.clone().unwrap_or_else(|| self.model.name());
        let program = Arc::new(loaded.program().clone());
        let facts = model::Facts {
            vocab: program.vocab as u32,
            max_len,
            eos: loaded.opened.eos(),
            sampling: Sampling { temperature: 1.0, ..Sampling::default() },
            prefix_salt: Box::new(move |final_len| program.prefix_salt(final_len)),
        };
        Model::new(name, &loaded.opened.text_files()?, facts).map_err(Failure::failed)
    }
}

async fn told_to_stop() {
    let interrupt = signal::ctrl_c();
    match signal::unix::signal(signal::unix::SignalKind::terminate()) {
        Ok(mut terminate) => {
            tokio::select! {
                _ = interrupt => {}
                _ = terminate.recv() => {}
            }
        }
        // Without a handler the signal ends the process, which is what it is for.
        Err(_) => std::future::pending().await,
    }
}

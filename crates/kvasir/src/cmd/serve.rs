use super::{Failure, manners::Manners, model::ModelArgs, started::Started};
use crate::options::Options;
use kvasir_serve::http::{Keys, serve};
use std::{
    net::{IpAddr, SocketAddr},
    process::ExitCode,
    time::{Duration, Instant},
};
use tokio::{net::TcpListener, signal};

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
    manners: Manners,
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
        let keys = Keys::new(self.api_key);
        let Started { app, name, backend, slots, .. } =
            Started::new(&self.model, self.model_name.as_deref(), &self.manners, &self.options, keys)?;
        let address = SocketAddr::new(self.host, self.port);
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

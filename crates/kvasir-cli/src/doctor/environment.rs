//! `doctor` checks of the environment: options file, port, hub cache.

use crate::doctor::check::Check;
use kvasir::HubName;
use std::{
    fs,
    net::{SocketAddr, TcpListener},
    path::Path,
};

pub(crate) fn config(path: &Path, found: &Result<(), String>) -> Check {
    match found {
        Ok(()) => Check::ok("config", format!("{}: a server can be started with it", path.display())),
        Err(why) => Check::fail("config", why.clone())
            .advise("`kvasir serve --print-config` prints a file with every option that is set"),
    }
}

pub(crate) fn port(address: SocketAddr) -> Check {
    match TcpListener::bind(address) {
        Ok(_) => Check::ok("port", format!("{address} is free")),
        Err(why) => Check::fail("port", format!("{address}: {why}"))
            .advise("give another with --port, or end what listens there"),
    }
}

pub(crate) fn hub_cache() -> Check {
    let folder = match HubName::cache() {
        Ok(folder) => folder,
        Err(why) => return Check::warn("hub cache", why.to_string()),
    };
    let place = folder.display();
    match fs::read_dir(&folder) {
        Ok(entries) => {
            let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
            let models = names.filter(|name| name.starts_with("models--")).count();
            Check::ok("hub cache", format!("{models} models in {place}")).value("models", models)
        }
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => {
            Check::ok("hub cache", format!("{place} is not there yet")).value("models", 0)
        }
        Err(why) => Check::warn("hub cache", format!("{place}: {why}"))
            .advise("models cannot be found by their names until it can be read"),
    }
}

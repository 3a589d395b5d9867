//! External faults: invalid messages on the fleet's sockets, a log on a full disk, suspended ranks.
//! The server keeps running, and its answers are those without the fault.

use super::fleet::{Fleet, answer_all, is_running, request, signal};
use super::ranks::ranks;
use super::server::{CHAT, Server, chat, model};
use kvasir_testkit::Random;
use serde_json::json;
use std::{
    fs::{self, File},
    io::Write,
    net::{TcpListener, TcpStream},
    os::unix::net::UnixStream,
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};
use tokio::{runtime::Runtime, time::timeout};
use zeromq::{DealerSocket, PushSocket, Socket, SocketSend, ZmqMessage};

/// The `Stopped` result of an engine, in msgpack. The front kills the worker of an accepted one.
const STOPPED: &[u8] = b"\x81\xa7Stopped\x81\xa3why\xa1x";
/// One byte more than the maximum message size.
const OVERSIZED_BYTES: usize = (256 << 20) + 1;

/// The header frame of a message.
fn header(replica: u32, generation: u32, number: u64) -> Vec<u8> {
    [&replica.to_le_bytes()[..], &generation.to_le_bytes(), &number.to_le_bytes()].concat()
}

fn random_bytes(random: &mut Random, max_len: u32) -> Vec<u8> {
    (0..random.between(0, max_len)).map(|_| random.below(256) as u8).collect()
}

/// A random message that the front must drop.
fn invalid_message(random: &mut Random) -> ZmqMessage {
    let replica = random.below(2) as u32;
    let (header, body) = match random.below(6) {
        // A repeated message of the current process.
        0 => (header(replica, 0, 1), STOPPED.to_vec()),
        // Messages of an unknown generation and of an unknown replica.
        1 => (header(replica, 7, 1 << 40), STOPPED.to_vec()),
        2 => (header(2 + random.below(1000) as u32, 0, 1), STOPPED.to_vec()),
        3 => (header(replica, 0, 1 << 40), STOPPED[..random.below(STOPPED.len() as u64) as usize].to_vec()),
        4 => (random_bytes(random, 15), STOPPED.to_vec()),
        _ => (header(replica, 0, random.bits()), [&[0xc1][..], &random_bytes(random, 300)].concat()),
    };
    let mut message = ZmqMessage::from(header);
    if random.below(10) > 0 {
        message.push_back(body.into());
    }
    (0..random.below(3)).for_each(|_| message.push_front(random_bytes(random, 20).into()));
    message
}

/// Sends invalid messages until `done` to the fleet whose directory is in `runtime_dir`.
async fn send_invalid_messages(runtime_dir: &Path, done: &AtomicBool) {
    let directory = fs::read_dir(runtime_dir).unwrap().next().unwrap().unwrap().path();
    let address = |name: &str| format!("ipc://{}/{name}", directory.display());
    let (mut results, mut requests) = (PushSocket::new(), DealerSocket::new());
    results.connect(&address("results")).await.unwrap();
    requests.connect(&address("requests")).await.unwrap();
    let mut large = ZmqMessage::from(header(0, 0, 1 << 50));
    large.push_back(vec![0; OVERSIZED_BYTES].into());
    results.send(large).await.unwrap();
    let mut random = Random::new(7);
    while !done.load(Ordering::Relaxed) {
        results.send(invalid_message(&mut random)).await.unwrap();
        requests.send(invalid_message(&mut random)).await.unwrap();
        // Bytes that violate the ZeroMQ protocol.
        for name in ["results", "requests"] {
            let mut socket = UnixStream::connect(directory.join(name)).unwrap();
            // The server may close the connection first.
            let _ = socket.write_all(&random_bytes(&mut random, 400));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn invalid_messages_are_dropped_and_counted() {
    let runtime_dir = std::env::temp_dir().join(format!("kvasir-invalid-messages-{}", std::process::id()));
    fs::create_dir_all(&runtime_dir).unwrap();
    let options = ["--dp", "2", "--threads", "1", "--max-model-len", "512"];
    let environment = [("XDG_RUNTIME_DIR", runtime_dir.to_str().unwrap())];
    let fleet = Fleet { server: Server::start_with("faults-invalid-messages", &options, &environment) };
    let requests: Vec<_> = (0..64).map(|number| request(number, 100)).collect();
    let expected = answer_all(&fleet.server, &requests, |_| {});
    let got = answer_all(&fleet.server, &requests, |done| {
        let sending =
            async { timeout(Duration::from_secs(120), send_invalid_messages(&runtime_dir, done)).await };
        Runtime::new().unwrap().block_on(sending).unwrap();
    });
    assert_eq!(got, expected);
    fleet.wait_until_idle();
    let is_unaffected = |replica: &serde_json::Value| {
        replica["restarts"] == 0 && replica["phase"] == "ready" && replica["dropped_messages"] != 0
    };
    let replicas = fleet.replicas();
    assert!(replicas.iter().all(is_unaffected), "{replicas:?}");
    drop(fleet);
    fs::remove_dir_all(&runtime_dir).unwrap();
}

/// A server whose log is on a full disk.
fn start_on_full_disk(options: &[&str]) -> Server {
    let folder = model("faults-full-disk");
    // The listener is dropped at once, so that the server can bind its port.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let process = Command::new(env!("CARGO_BIN_EXE_kvasir"))
        .arg("serve")
        .arg(&folder)
        .args(["--port", &address.port().to_string(), "--model-name", "tiny", "--threads", "1"])
        .args(options)
        .stderr(File::options().write(true).open("/dev/full").unwrap())
        .spawn()
        .unwrap();
    let server = Server { process, address: address.to_string(), probes: None, folder };
    let begin = Instant::now();
    while TcpStream::connect(address).is_err() || server.send("GET", "/health", "", "").0 != 200 {
        assert!(begin.elapsed() < Duration::from_secs(60), "the server has not started");
        thread::sleep(Duration::from_millis(50));
    }
    server
}

#[test]
fn a_full_log_disk_does_not_affect_serving() {
    let fleet_options: &[&str] = &["--dp", "2", "--tokenizer-processes", "1"];
    for options in [&[], fleet_options] {
        let fleet = Fleet { server: start_on_full_disk(options) };
        let server = &fleet.server;
        assert_eq!(server.post(CHAT, &chat(json!({}))).0, 200);
        if !options.is_empty() {
            signal(fleet.processes()[0], "-KILL");
            fleet.wait_until("restarted", |replicas| replicas.iter().any(|replica| replica["restarts"] == 1));
            fleet.wait_until_ready();
        }
        assert_eq!(server.post(CHAT, &chat(json!({}))).0, 200);
        let page = server.send("GET", "/metrics", "", "").1;
        let lost = page.lines().find(|line| line.starts_with("kvasir:lost_log_lines_total{")).unwrap();
        assert!(!lost.ends_with(" 0"), "{lost}");
    }
}

#[test]
fn an_engine_with_a_suspended_rank_is_replaced() {
    for control in ["steps", "requests"] {
        let options = ["--tp", "2", "--rank-control", control, "--step-timeout", "3"];
        let fleet = Fleet::start(&format!("faults-suspended-{control}"), 2, &options);
        let requests: Vec<_> = (0..64).map(|number| request(number, 100)).collect();
        let expected = answer_all(&fleet.server, &requests, |_| {});
        let mut suspended = 0;
        let got = answer_all(&fleet.server, &requests, |done| {
            fleet.wait_for_tokens(done);
            suspended = ranks(&fleet)[0];
            signal(suspended, "-STOP");
        });
        assert_eq!(got, expected);
        // The kernel kills the suspended rank when the watchdog has killed rank 0.
        fleet.wait_until("killed", |replicas| {
            !is_running(suspended) && replicas.iter().all(|replica| replica["phase"] == "ready")
        });
        let hangs: u64 = fleet.replicas().iter().filter_map(|replica| replica["hangs"].as_u64()).sum();
        assert_eq!(hangs, 1, "{control}");
        fleet.wait_until_idle();
    }
}

/// The kernel's parent-death signal never comes if the parent has ended before the child requests
/// it.
#[cfg(target_os = "linux")]
#[test]
fn a_child_whose_parent_has_ended_does_not_start() {
    let children: [&[&str]; 3] = [
        &["worker", "--directory", ".", "--replica", "0", "--generation", "0"],
        &["rank", "--rank", "1", "--replica", "0"],
        &["tokenizer", "--tokenizer", "0", "--generation", "0"],
    ];
    for arguments in children {
        let mut child = Command::new(env!("CARGO_BIN_EXE_kvasir"));
        child.args(arguments).args(["--", "kvasir", "serve"]);
        let output = child.env("KVASIR_PARENT_PROCESS", u32::MAX.to_string()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {errors}");
        assert!(errors.contains("the parent process has ended"), "{arguments:?}: {errors}");
    }
}

//! `doctor` checks of the machine: instruction set, threads, memory, roofline, system limits.

use crate::doctor::check::Check;
use kvasir_cpu::{Isa, LimitsMeter, MachineLimits, ThreadPool};
use std::{env::consts::ARCH, fs, path::Path, thread};

const GB: f64 = 1e9;
/// Free memory required to measure speeds: 1 GB is read, and as much stays free.
const ROOM_TO_MEASURE: u64 = 2 << 30;
/// File descriptors that a server with the default `--max-connections` needs, including probes and
/// rejections.
const FILES: u64 = 4096 + 512;

pub(crate) fn processor() -> Check {
    let isa = Isa::detect();
    let found = format!("{isa} kernels on {ARCH}");
    let check = match (isa, ARCH) {
        (Isa::PORTABLE, "x86_64") => Check::warn("processor", found)
            .advise("this processor has no AVX2, or the system hides it; answers will be slow"),
        _ => Check::ok("processor", found),
    };
    check.value("level", isa.to_string()).value("architecture", ARCH)
}

pub(crate) fn threads() -> Check {
    let allowed = thread::available_parallelism().map_or(1, usize::from);
    let used = ThreadPool::of_machine().len();
    let found = format!("{used} used by the cpu backend, {allowed} that this process may run on");
    let check = if used > allowed {
        Check::warn("threads", found).advise(format!("give --threads {allowed}"))
    } else {
        Check::ok("threads", found)
    };
    check.value("used", used).value("allowed", allowed)
}

/// Why steps do not overlap with scheduling unless that is chosen.
pub(crate) fn overlap() -> Check {
    let why = "off by default: scheduling takes microseconds, and a new request would wait a step more";
    Check::ok("overlap", why)
}

pub(crate) fn memory(free: Option<u64>) -> Check {
    let Some(free) = free else {
        return Check::warn("memory", "the system does not say what is free")
            .advise("give --kv-capacity: the pool cannot be sized by itself");
    };
    let check = Check::ok("memory", format!("{:.1} GB free", free as f64 / GB));
    check.value("free_bytes", free)
}

/// Measured machine limits (roofline).
pub(crate) enum Speeds {
    Measured(MachineLimits),
    Not(String),
}

/// Measures machine limits if memory suffices; `None` if free memory is unknown.
pub(crate) fn speeds(free: Option<u64>) -> Option<Speeds> {
    if free? < ROOM_TO_MEASURE {
        return Some(Speeds::Not("not measured: less than 2 GB are free".into()));
    }
    let thread_pool = ThreadPool::of_machine();
    Some(match LimitsMeter::new(&thread_pool) {
        Ok(meter) => Speeds::Measured(meter.measure()),
        Err(error) => Speeds::Not(format!("not measured: {error}")),
    })
}

impl Speeds {
    /// The measured limits.
    pub(super) fn peaks(&self) -> Option<&MachineLimits> {
        match self {
            Self::Measured(peaks) => Some(peaks),
            Self::Not(_) => None,
        }
    }

    pub(super) fn check(&self) -> Check {
        let peaks = match self {
            Self::Measured(peaks) => peaks,
            Self::Not(why) => return Check::warn("speed", why.clone()),
        };
        let MachineLimits { bandwidth, integer, bf16, f32 } = *peaks;
        let found = format!(
            "reads {:.1} GB/s; {:.2} integer, {:.2} bf16, {:.2} f32 Tops/s",
            bandwidth / GB,
            integer / 1e12,
            bf16 / 1e12,
            f32 / 1e12
        );
        Check::ok("speed", found)
            .value("read_bytes_per_second", bandwidth)
            .value("integer_operations_per_second", integer)
            .value("bf16_operations_per_second", bf16)
            .value("f32_operations_per_second", f32)
    }
}

/// A soft limit of this process, if known.
fn limit(proc: &Path, of: &str) -> Option<String> {
    let text = fs::read_to_string(proc.join("self/limits")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(of))?;
    line.split_whitespace().next().map(str::to_owned)
}

/// Limit of the address space in bytes, if limited.
pub(crate) fn address_space(proc: &Path) -> Option<u64> {
    limit(proc, "Max address space")?.parse().ok()
}

/// An address space limit is reached long before that memory is used.
pub(crate) fn addresses(space: u64) -> Check {
    Check::warn("addresses", format!("limited to {:.1} GB", space as f64 / GB))
        .advise("lift it with `ulimit -v unlimited`: files are mapped and the pool's addresses taken at once")
        .value("limit_bytes", space)
}

/// Checks the file descriptor limit; `None` if unknown.
pub(crate) fn open_files(proc: &Path) -> Option<Check> {
    let soft = limit(proc, "Max open files")?;
    let Ok(files) = soft.parse::<u64>() else {
        return Some(Check::ok("files", format!("{soft} may be open")));
    };
    let found = format!("{files} may be open");
    let check = if files < FILES {
        Check::warn("files", found)
            .advise(format!("raise it with `ulimit -n {FILES}`, or give a lower --max-connections"))
    } else {
        Check::ok("files", found)
    };
    Some(check.value("limit", files))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_proc_files_are_no_failure() {
        let folder = std::env::temp_dir().join(format!("kvasir-doctor-{}", std::process::id()));
        fs::create_dir_all(folder.join("self")).unwrap();
        assert_eq!(open_files(&folder), None);
        let write = |soft: &str| {
            let text = format!(
                "Limit  Soft Limit  Hard Limit  Units\nMax open files            {soft}                 8192                 files\nMax address space         {soft}            unlimited            bytes\n"
            );
            fs::write(folder.join("self/limits"), text).unwrap();
        };
        let limits = |soft: &str| {
            write(soft);
            open_files(&folder).unwrap()
        };
        assert_eq!(
            limits("1024"),
            Check::warn("files", "1024 may be open")
                .advise("raise it with `ulimit -n 4608`, or give a lower --max-connections")
                .value("limit", 1024)
        );
        assert_eq!(limits("unlimited"), Check::ok("files", "unlimited may be open"));
        assert_eq!(address_space(&folder), None);
        write("8192");
        assert_eq!(address_space(&folder), Some(8192));
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(memory(None), memory(None));
        assert!(matches!(speeds(Some(1 << 30)), Some(Speeds::Not(_))));
    }
}

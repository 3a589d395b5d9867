//! Metrics of the process under Prometheus' usual names: memory, CPU time, file descriptors.
//!
//! Read from `/proc`, which only Linux has; elsewhere there are none.

use std::fmt::Write;
use std::fs;

/// Kernel clock ticks per second, on every Linux.
const TICKS: f64 = 100.0;

/// Appends the metrics to a page.
pub(crate) fn append(page: &mut String) {
    let Some(process) = Process::read() else { return };
    let mut put = |name: &str, kind: &str, help: &str, value: f64| {
        // Writing to a String cannot fail.
        let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
    };
    put("process_cpu_seconds_total", "counter", "CPU time of all threads.", process.cpu_seconds);
    put("process_start_time_seconds", "gauge", "Start of the process in Unix time.", process.started);
    put(
        "process_resident_memory_bytes",
        "gauge",
        "Memory in RAM, mapped weights included.",
        process.resident,
    );
    put("process_virtual_memory_bytes", "gauge", "Address space in use.", process.address_space);
    put("process_threads", "gauge", "Threads.", process.threads);
    put("process_open_fds", "gauge", "Open file descriptors.", process.open_files);
    put("process_max_fds", "gauge", "Most open file descriptors.", process.max_files);
}

#[derive(Debug, PartialEq)]
struct Process {
    cpu_seconds: f64,
    started: f64,
    resident: f64,
    address_space: f64,
    threads: f64,
    open_files: f64,
    max_files: f64,
}

impl Process {
    fn read() -> Option<Self> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        let status = fs::read_to_string("/proc/self/status").ok()?;
        let limits = fs::read_to_string("/proc/self/limits").ok()?;
        let boot = fs::read_to_string("/proc/stat").ok()?;
        let open_files = fs::read_dir("/proc/self/fd").ok()?.count() as f64;
        Self::parse(&stat, &status, &limits, &boot, open_files)
    }

    fn parse(stat: &str, status: &str, limits: &str, boot: &str, open_files: f64) -> Option<Self> {
        // The command's name, in parentheses, may hold spaces. Fields count from 3 behind it.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |n: usize| fields.get(n - 3)?.parse::<f64>().ok();
        let number = |text: &str, name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<f64>().ok()
        };
        Some(Self {
            cpu_seconds: (field(14)? + field(15)?) / TICKS,
            started: number(boot, "btime")? + field(22)? / TICKS,
            resident: number(status, "VmRSS:")? * 1024.0,
            address_space: number(status, "VmSize:")? * 1024.0,
            threads: number(status, "Threads:")?,
            open_files,
            max_files: number(limits, "Max open files").unwrap_or(f64::INFINITY),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_proc() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4 0 0 0 0 250 50 0 0 20 0 3 0 1000 9 9";
        let status = "Name:\ta\nVmSize:\t  2048 kB\nVmRSS:\t   1024 kB\nThreads:\t3\n";
        let limits = "Limit  Soft  Hard\nMax open files            1024    4096   files\n";
        let process = Process::parse(stat, status, limits, "cpu 1\nbtime 1700000000\n", 5.0).unwrap();
        let expected = Process {
            cpu_seconds: 3.0,
            started: 1_700_000_010.0,
            resident: 1048576.0,
            address_space: 2097152.0,
            threads: 3.0,
            open_files: 5.0,
            max_files: 1024.0,
        };
        assert_eq!(process, expected);
    }
}

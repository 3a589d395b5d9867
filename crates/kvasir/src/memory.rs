//! Memory available to this process: that of the machine, within the limits of its control groups
//! (containers, systemd units), version 1 or 2.
//!
//! File pages count as available, as in the kernel's `MemAvailable`: they can be reclaimed.

use std::fs;
use std::path::Path;

/// Files of a memory control group: directory below the mount, limit, use, prefix of the counters
/// that include descendants.
struct Hierarchy {
    folder: &'static str,
    limit: &'static str,
    used: &'static str,
    file_pages: [&'static str; 2],
}

const V2: Hierarchy = Hierarchy {
    folder: "",
    limit: "memory.max",
    used: "memory.current",
    file_pages: ["active_file ", "inactive_file "],
};
const V1: Hierarchy = Hierarchy {
    folder: "memory",
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    file_pages: ["total_active_file ", "total_inactive_file "],
};

/// Memory in bytes that this process can still allocate; `None` if the system does not tell.
pub fn available_memory() -> Option<u64> {
    available_memory_in(Path::new("/proc"), Path::new("/sys/fs/cgroup"))
}

/// [`available_memory`] as the given mounts of `proc` and `cgroup` tell it.
pub fn available_memory_in(proc: &Path, cgroup: &Path) -> Option<u64> {
    let machine = counter(&proc.join("meminfo"), "MemAvailable:")?.checked_mul(1024)?;
    let groups = fs::read_to_string(proc.join("self/cgroup")).unwrap_or_default();
    // `ID:CONTROLLERS:PATH`; version 2 has no controllers.
    let limits = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        if controllers.is_empty() {
            V2.available(cgroup, path)
        } else if controllers.split(',').any(|name| name == "memory") {
            V1.available(cgroup, path)
        } else {
            None
        }
    });
    Some(limits.fold(machine, u64::min))
}

impl Hierarchy {
    /// The least that the group at `path` and its ancestors leave. Inside a container, where `path` is
    /// often that of the host, the root of the mount is the container's own group.
    fn available(&self, mount: &Path, path: &str) -> Option<u64> {
        let mount = mount.join(self.folder);
        Path::new(path.trim_start_matches('/'))
            .ancestors()
            .filter_map(|group| self.left(&mount.join(group)))
            .min()
    }

    /// `limit - (use - file pages)` of one group; `None` without a limit.
    fn left(&self, group: &Path) -> Option<u64> {
        let number = |name| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
        let (limit, used) = (number(self.limit)?, number(self.used)?);
        let stat = group.join("memory.stat");
        let file: u64 = self.file_pages.iter().filter_map(|name| counter(&stat, name)).sum();
        Some(limit.saturating_sub(used.saturating_sub(file)))
    }
}

/// The number behind `name` in a file of lines `NAME NUMBER [UNIT]`.
fn counter(file: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_the_least_that_machine_and_groups_leave() {
        let root = std::env::temp_dir().join(format!("kvasir-memory-{}", std::process::id()));
        let (proc, cgroup) = (root.join("proc"), root.join("cgroup"));
        let available = || available_memory_in(&proc, &cgroup);
        let write = |file: &str, text: &str| {
            let file = root.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        assert_eq!(available(), None);
        write("proc/meminfo", "MemTotal: 90 kB\nMemAvailable:    8 kB\n");
        assert_eq!(available(), Some(8192), "no control groups");

        write("proc/self/cgroup", "0::/unit/inner\n");
        write("cgroup/unit/inner/memory.max", "max\n");
        write("cgroup/unit/inner/memory.current", "1000\n");
        assert_eq!(available(), Some(8192), "no limit");
        write("cgroup/unit/memory.max", "5000\n");
        write("cgroup/unit/memory.current", "3000\n");
        write("cgroup/unit/memory.stat", "anon 1800\nactive_file 200\ninactive_file 1000\n");
        assert_eq!(available(), Some(5000 - 3000 + 1200), "limit of an ancestor");
        write("cgroup/unit/memory.current", "9000\n");
        assert_eq!(available(), Some(0), "above its limit");

        write("proc/self/cgroup", "4:cpu,memory:/docker/id\n1:cpuset:/\n");
        write("cgroup/memory/memory.limit_in_bytes", "4096\n");
        write("cgroup/memory/memory.usage_in_bytes", "96\n");
        assert_eq!(available(), Some(4000), "a container sees its group at the root");
        fs::remove_dir_all(&root).unwrap();
    }
}

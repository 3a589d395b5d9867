//! `kvasir convert` and the file system: which targets are replaced, which are rejected.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

use kvasir_testkit::paths;
use std::{
    fs,
    os::unix::fs::{FileTypeExt, symlink},
    path::Path,
    process::{Command, Output},
};

fn convert(out: &Path) -> Output {
    let model = kvasir_testkit::paths::model("qwen3");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
    command.arg("convert").arg(model).arg(out).args(["--dtype", "q8_0"]).output().unwrap()
}

#[test]
fn only_a_file_is_replaced_and_links_are_followed() {
    let folder = paths::scratch(env!("CARGO_TARGET_TMPDIR"), "convert");
    let at = |name: &str| folder.join(name);
    assert!(Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
    symlink(at("nowhere"), at("dangling")).unwrap();
    for (name, why) in
        [("fifo", "is not a regular file"), ("dangling", "dangling symbolic link"), ("", "is a directory")]
    {
        let out = convert(&at(name));
        let printed = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(2), "{printed}");
        assert!(
            printed.contains(why) && printed.contains(name) && printed.trim_end().lines().count() == 1,
            "{printed}"
        );
    }
    assert!(fs::metadata(at("fifo")).unwrap().file_type().is_fifo());
    // Temporary files carry the process id; a bare `.part` belongs to another program.
    fs::write(at("file.part"), "mine").unwrap();
    fs::write(at("file"), "old").unwrap();
    symlink(at("file"), at("link")).unwrap();
    let out = convert(&at("link"));
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(at("link").is_symlink());
    assert!(fs::read(at("file")).unwrap().starts_with(b"GGUF"));
    assert_eq!(fs::read(at("file.part")).unwrap(), b"mine");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 5);
    fs::remove_dir_all(&folder).unwrap();
}

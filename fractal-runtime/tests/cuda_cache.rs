//! The kernel cache: damage is found, races are harmless, and a folder that cannot be used costs speed only.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use fractal_runtime::cuda::testing::{compiler_or_skip, empty_cubin};
use fractal_runtime::cuda::{Arch, Cubin, CubinCache, Key, Lookup, Options, Origin, Source, Version};
use proptest::prelude::*;

const NVRTC: Version = Version { major: 13, minor: 0 };

/// Names the folder in a child process of this test binary; the children's tests return at once without it.
const CHILD: &str = "FRACTAL_TEST_CACHE_CHILD";

fn key(text: &str) -> Key {
    Key::new(&Source::new("k", text), Arch::HOPPER, &Options::default(), NVRTC, None)
}

/// Content that belongs to a key and to no other.
fn content(index: usize) -> Cubin {
    empty_cubin(&format!("kernel_{index}"), &format!("log of {index} ").repeat(200 + index))
}

fn hit(cubin: Cubin) -> Lookup {
    Lookup::Hit(Box::new(cubin))
}

fn only_entry(folder: &Path) -> PathBuf {
    let entries: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(entries.len(), 1, "{entries:?}");
    entries[0].clone()
}

fn child(test: &str, folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(CHILD, folder).stdout(Stdio::null());
    command
}

#[test]
fn what_was_put_is_got() {
    let folder = tempfile::tempdir().unwrap();
    let cache = CubinCache::at(folder.path());
    assert_eq!(cache.get(key("a")), Lookup::Miss);
    assert!(cache.put(key("a"), &content(1)));
    assert_eq!(cache.get(key("a")), hit(content(1)));
    assert_eq!(cache.get(key("b")), Lookup::Miss);
    assert_eq!(cache.trouble(), None);
    assert_eq!(CubinCache::at(folder.path()).get(key("a")), hit(content(1)));
}

#[test]
fn a_key_depends_on_everything_that_the_code_depends_on() {
    let source = Source::new("k", "text").header("h", "1");
    let options = Options { defines: vec![("N".into(), "4".into())], ..Options::default() };
    let base = || Key::new(&source, Arch::HOPPER, &options, NVRTC, None);
    assert_eq!(base(), base());
    let other_options = Options { defines: vec![("N".into(), "5".into())], ..Options::default() };
    let keys = [
        base(),
        Key::new(&Source::new("k", "text").header("h", "2"), Arch::HOPPER, &options, NVRTC, None),
        Key::new(&Source::new("k", "text").header("i", "1"), Arch::HOPPER, &options, NVRTC, None),
        Key::new(&Source::new("kt", "ext").header("h", "1"), Arch::HOPPER, &options, NVRTC, None),
        Key::new(&source, Arch::AMPERE, &options, NVRTC, None),
        Key::new(&source, Arch { specific: false, ..Arch::HOPPER }, &options, NVRTC, None),
        Key::new(&source, Arch::HOPPER, &other_options, NVRTC, None),
        Key::new(&source, Arch::HOPPER, &Options { fast_math: true, ..options.clone() }, NVRTC, None),
        Key::new(&source, Arch::HOPPER, &options, Version { major: 12, minor: 8 }, None),
        Key::new(&source, Arch::HOPPER, &options, NVRTC, Some(Path::new("/include"))),
    ];
    for (i, a) in keys.iter().enumerate() {
        assert!(keys[..i].iter().all(|b| a != b), "key {i} is that of another");
    }
}

#[test]
fn a_key_leaves_out_comments_before_the_code_and_no_others() {
    let key = |text: &str| Key::new(&Source::new("k", text), Arch::HOPPER, &Options::default(), NVRTC, None);
    let plain = key("int a; // tw:64\n");
    assert_eq!(key("// 64 x 64 weight\n//   let k4 = skip(k);\nint a; // tw:64\n"), plain);
    for text in
        ["int a;\n", "// more \\\nint a; // tw:64\n", "\n// here\nint a; // tw:64\n", " // here\nint a; // tw:64\n"]
    {
        assert_ne!(key(text), plain, "{text}");
    }
    let lines = Options { line_info: true, ..Options::default() };
    let key = |text: &str| Key::new(&Source::new("k", text), Arch::HOPPER, &lines, NVRTC, None);
    assert_ne!(key("// one\nint a;\n"), key("int a;\n"));
}

#[test]
fn an_entry_that_is_cut_off_is_never_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let cache = CubinCache::at(folder.path());
    cache.put(key("a"), &content(1));
    let entry = only_entry(folder.path());
    let whole = fs::read(&entry).unwrap();
    for len in (0..200).chain((200..whole.len()).step_by(97)).chain([whole.len() - 1]) {
        fs::write(&entry, &whole[..len]).unwrap();
        let Lookup::Damaged { reason } = cache.get(key("a")) else { panic!("{len} of {} bytes", whole.len()) };
        assert!(reason.contains(entry.to_str().unwrap()), "{reason}");
    }
    fs::write(&entry, [whole, vec![0]].concat()).unwrap();
    assert!(matches!(cache.get(key("a")), Lookup::Damaged { .. }));
    assert!(cache.put(key("a"), &content(1)));
    assert_eq!(cache.get(key("a")), hit(content(1)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn an_entry_with_changed_bits_is_never_loaded(
        place in any::<prop::sample::Index>(), flip in 1u8.., len in 1usize..64,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let cache = CubinCache::at(folder.path());
        cache.put(key("a"), &content(1));
        let entry = only_entry(folder.path());
        let mut bytes = fs::read(&entry).unwrap();
        let at = place.index(bytes.len());
        bytes.iter_mut().skip(at).take(len).for_each(|byte| *byte ^= flip);
        fs::write(&entry, bytes).unwrap();
        let damaged = matches!(cache.get(key("a")), Lookup::Damaged { .. });
        prop_assert!(damaged);
    }
}

#[test]
fn the_entry_of_another_key_is_never_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let cache = CubinCache::at(folder.path());
    cache.put(key("a"), &content(1));
    let a = only_entry(folder.path());
    let bytes = fs::read(&a).unwrap();
    fs::remove_file(&a).unwrap();
    cache.put(key("b"), &content(2));
    fs::write(only_entry(folder.path()), bytes).unwrap();
    let Lookup::Damaged { reason } = cache.get(key("b")) else { panic!("loaded") };
    assert!(reason.ends_with("it is the entry of another key"), "{reason}");
}

#[test]
fn a_folder_in_place_of_an_entry_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let cache = CubinCache::at(folder.path());
    cache.put(key("a"), &content(1));
    let entry = only_entry(folder.path());
    fs::remove_file(&entry).unwrap();
    fs::create_dir(&entry).unwrap();
    fs::write(entry.join("in the way"), "").unwrap();
    assert!(matches!(cache.get(key("a")), Lookup::Damaged { .. }));
    assert!(cache.put(key("a"), &content(1)));
    assert_eq!(cache.get(key("a")), hit(content(1)));
}

#[test]
fn a_folder_that_cannot_be_made_turns_the_cache_off() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let cache = CubinCache::at(file.join("kernels"));
    assert_eq!(cache.folder(), None);
    assert!(!cache.put(key("a"), &content(1)));
    assert_eq!(cache.get(key("a")), Lookup::Miss);
    let trouble = cache.trouble().unwrap();
    assert!(trouble.contains(file.to_str().unwrap()), "{trouble}");
}

#[test]
fn a_folder_that_disappears_is_made_anew() {
    let folder = tempfile::tempdir().unwrap();
    let cache = CubinCache::at(folder.path().join("kernels"));
    fs::remove_dir(folder.path().join("kernels")).unwrap();
    assert_eq!(cache.get(key("a")), Lookup::Miss);
    assert!(cache.put(key("a"), &content(1)));
    assert_eq!(cache.get(key("a")), hit(content(1)));
}

#[test]
fn a_folder_that_becomes_unusable_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kernels");
    let cache = CubinCache::at(&path);
    fs::remove_dir(&path).unwrap();
    fs::write(&path, "").unwrap();
    assert!(!cache.put(key("a"), &content(1)));
    assert!(cache.trouble().unwrap().contains("cannot write"));
    assert!(!matches!(cache.get(key("a")), Lookup::Hit(_)));
}

/// A disk without room, by a limit on the size of files: the write fails half way. Root is bound by it too.
#[cfg(unix)]
#[test]
fn a_full_disk_leaves_no_entry_and_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let status = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 1; exec \"$0\" --exact child_with_a_full_disk --nocapture"])
        .arg(std::env::current_exe().unwrap())
        .env(CHILD, folder.path())
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "a temporary file was left");
}

#[test]
fn child_with_a_full_disk() {
    let Some(folder) = std::env::var_os(CHILD) else { return };
    let cache = CubinCache::at(folder);
    assert!(!cache.put(key("a"), &content(1)));
    assert!(cache.trouble().unwrap().contains("cannot write"));
    assert_eq!(cache.get(key("a")), Lookup::Miss);
}

/// A folder that may be read but not written: its entries are used.
#[cfg(unix)]
#[test]
fn a_read_only_folder_serves_what_it_holds() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    CubinCache::at(folder.path()).put(key("a"), &content(1));
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o500)).unwrap();
    let cache = CubinCache::at(folder.path());
    assert_eq!(cache.get(key("a")), hit(content(1)));
    // Root may write anyway.
    assert_eq!(cache.put(key("b"), &content(2)), cache.trouble().is_none());
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
}

const KEYS: usize = 4;

/// Gets and puts as fast as it can. Damage may be seen, since the races include vandals, but no wrong content.
fn race(cache: &CubinCache, seed: usize, rounds: usize) {
    for round in 0..rounds {
        let index = (seed + round * 7) % KEYS;
        match cache.get(key(&index.to_string())) {
            Lookup::Hit(cubin) => assert_eq!(*cubin, content(index)),
            Lookup::Miss | Lookup::Damaged { .. } => {
                cache.put(key(&index.to_string()), &content(index));
            }
        }
    }
}

/// Overwrites entries in place with parts of themselves, as a crash or a broken disk does.
fn vandalise(folder: &Path, rounds: usize) {
    for round in 0..rounds {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            // One that is being published may be gone before it is written: that would make it anew.
            if entry.path().extension().is_none_or(|extension| extension != "fcubin") {
                continue;
            }
            let Ok(bytes) = fs::read(entry.path()) else { continue };
            let _ = fs::write(entry.path(), &bytes[..bytes.len() * (round % 5) / 4]);
        }
    }
}

fn assert_all_there(folder: &Path) {
    let cache = CubinCache::at(folder);
    race(&cache, 0, 2 * KEYS);
    for index in 0..KEYS {
        assert_eq!(cache.get(key(&index.to_string())), hit(content(index)));
    }
    let names: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(names.iter().all(|name| name.to_str().unwrap().ends_with(".fcubin")), "left over: {names:?}");
}

#[test]
fn threads_race_on_one_folder() {
    let folder = tempfile::tempdir().unwrap();
    let cache = CubinCache::at(folder.path());
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let cache = &cache;
            scope.spawn(move || race(cache, seed, 150));
        }
        scope.spawn(|| vandalise(folder.path(), 30));
    });
    assert_all_there(folder.path());
}

#[test]
fn processes_race_on_one_folder() {
    let folder = tempfile::tempdir().unwrap();
    // Not made yet: making it is a part of the race.
    let kernels = folder.path().join("a/b/kernels");
    let racers: Vec<Child> = (0..6).map(|_| child("child_that_races", &kernels).spawn().unwrap()).collect();
    for mut racer in racers {
        assert!(racer.wait().unwrap().success());
    }
    assert_all_there(&kernels);
}

#[test]
fn child_that_races() {
    let Some(folder) = std::env::var_os(CHILD) else { return };
    let cache = CubinCache::at(&folder);
    let seed = std::process::id() as usize;
    race(&cache, seed, 150);
    vandalise(Path::new(&folder), 3);
    race(&cache, seed, 150);
}

#[test]
fn a_process_killed_while_it_writes_leaves_no_entry_that_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..5 {
        let mut racer = child("child_that_races", folder.path()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(30));
        racer.kill().unwrap();
        racer.wait().unwrap();
    }
    let cache = CubinCache::at(folder.path());
    race(&cache, 0, 4 * KEYS);
    for index in 0..KEYS {
        assert_eq!(cache.get(key(&index.to_string())), hit(content(index)));
    }
}

#[test]
fn a_source_is_compiled_once_and_again_after_damage() {
    let Some(compiler) = compiler_or_skip() else { return };
    let folder = tempfile::tempdir().unwrap();
    let cache = CubinCache::at(folder.path());
    let source = Source::new("set", "extern \"C\" __global__ void set(int* x) { *x = VALUE; }");
    let options = Options { defines: vec![("VALUE".into(), "7".into())], ..Options::default() };
    let get = |cache: &CubinCache| cache.get_or_compile(&compiler, &source, Arch::AMPERE, &options).unwrap();
    let (compiled, origin) = get(&cache);
    assert_eq!(origin, Origin::Compiled);
    assert_eq!(get(&cache), (compiled.clone(), Origin::Cached));
    assert_eq!(get(&CubinCache::at(folder.path())), (compiled.clone(), Origin::Cached));

    fs::write(only_entry(folder.path()), "").unwrap();
    let (again, origin) = get(&cache);
    assert_eq!(again.bytes(), compiled.bytes());
    assert!(matches!(origin, Origin::Recompiled { .. }), "{origin:?}");
    assert_eq!(get(&cache).1, Origin::Cached);

    let (without, origin) = get(&CubinCache::off("for a test"));
    assert_eq!((without.bytes(), origin), (compiled.bytes(), Origin::Compiled));
}

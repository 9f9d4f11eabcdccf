//! The command line by itself: an error is reported in one line, and help is as published.

mod common;

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};

use common::{forebay, outcome, run};

/// Words on a line are parted by one blank; `~` is a blank within a word, `''` an empty word.
fn words(line: &str) -> Vec<String> {
    line.split(' ').map(|word| word.replace('~', " ").replace("''", "")).collect()
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn bad_command_lines_exit_with_2_and_a_line_naming_the_field() {
    let long = format!("--socket /{} list", "x".repeat(107));
    let make = "--socket /nonexistent/s create v -s ram:64M -p /origin";
    let create = |rest: &str| format!("{make} {rest}");
    let set = |rest: &str| format!("--socket /nonexistent/s set v {rest}");
    let mut matrix: Vec<(String, &str)> = vec![
        (long, "--socket"),
        ("--socket '' list".to_owned(), "--socket"),
        ("lisst".to_owned(), "; a similar subcommand exists: 'list'"),
        ("list --jsn".to_owned(), "'--json'"),
        ("create v".to_owned(), "--origin"),
        ("create v -s ram:64M".to_owned(), "--origin"),
        ("create -s ram:64M -p /o".to_owned(), "<NAME>"),
        ("show".to_owned(), "<NAME>"),
        ("show ../x".to_owned(), "<NAME>"),
        ("show ''".to_owned(), "<NAME>"),
        ("set v".to_owned(), "KEY=VALUE"),
        ("check".to_owned(), "<DEVICE>"),
        ("advise".to_owned(), "<TRACE>"),
        ("advise t --rate 0".to_owned(), "--rate"),
        ("advise t --rate -1".to_owned(), "--rate"),
        ("advise t --rate NaN".to_owned(), "--rate"),
        ("advise t --sizes 64G,1".to_owned(), "--sizes"),
        ("advise t --align 0.5".to_owned(), "--align"),
        ("advise t --format tar".to_owned(), "--format"),
        ("advise t --live v".to_owned(), "--live"),
        ("advise --live v --rate 0.1".to_owned(), "--rate"),
        ("advise --live ../v".to_owned(), "--live"),
        ("completions tcsh9".to_owned(), "tcsh9"),
        ("daemon --lanes 0".to_owned(), "--lanes"),
        ("daemon --lanes -1".to_owned(), "--lanes"),
        ("daemon --lanes 1e3".to_owned(), "--lanes"),
        ("daemon --nbd nowhere".to_owned(), "--nbd"),
        ("daemon --nbd localhost:0".to_owned(), "--nbd"),
        ("daemon --nbd localhost:65536".to_owned(), "--nbd"),
        ("--socket /nonexistent/s daemon --log =bogus=".to_owned(), "--log"),
        ("--socket /nonexistent/s daemon --nbd a:1 --nbd a:1".to_owned(), "--nbd"),
        ("--socket /nonexistent/s daemon --nbd /nonexistent/s".to_owned(), "--nbd"),
        ("--socket /nonexistent/s daemon --state-dir ''".to_owned(), "--state-dir"),
        (create("--ram 4"), "'4' would be 4 bytes; add a unit, like 4G"),
        (create("-b 8"), "like 8K"),
        ("create v -s f:10 -p /o".to_owned(), "f,size=10G"),
        ("create v -s ram:10 -p /o".to_owned(), "like 10G"),
        ("daemon --memory-limit 1".to_owned(), "like 1G"),
        ("memory --limit 4".to_owned(), "'4' would be 4 bytes"),
        ("advise t --sizes 64".to_owned(), "like 64G"),
        (create("--set dirty-high=9"), "did you mean 'dirty_high'?"),
        (create("-t WB"), "--mode"),
        (create("-t ''"), "--mode"),
        (create("-r mru"), "--policy"),
        (create("--profile flashcache"), "lvmcache, opencas, maxio"),
        (create("--profile ''"), "--profile"),
        ("profiles zfs".to_owned(), "enhanceio, bcache, dm-cache"),
        (create("--durability none"), "--durability"),
        (create("-t wb -t wt"), "--mode"),
        (create("--speed 3"), "--speed"),
    ];
    for size in ["-1", "1e30", "10~GB", "''", "18446744073709551616", "0x1000", "+4K", "4~K", "K"] {
        matrix.push((create(&format!("--block-size {size}")), "--block-size"));
        matrix.push((create(&format!("--alignment {size}")), "--alignment"));
        matrix.push((set(&format!("sequential_cutoff={size}")), "sequential_cutoff"));
        matrix.push((format!("create v -s ram:{size} -p /origin"), "--cache"));
        matrix.push((format!("create v -s ram:64M -p /origin,size={size}"), "--origin"));
    }
    for size in ["0", "3", "1K", "2M", "2147483648"] {
        matrix.push((create(&format!("--block-size {size}")), "--block-size"));
    }
    for (setting, field) in [
        ("mode", "mode"),
        ("=wb", "''"),
        ("nope=1", "nope"),
        ("ram=4", "like 4G"),
        ("dirtyhigh=1", "did you mean 'dirty_high'?"),
        ("mode=wb mode=wb", "mode"),
        ("dirty_high=101", "dirty_high"),
        ("dirty_age=30", "dirty_age"),
        ("idle=-1s", "idle"),
        ("writeback_running=maybe", "writeback_running"),
        ("writeback_depth=0", "writeback_depth"),
        ("commit_interval=0", "commit_interval"),
    ] {
        matrix.push((set(setting), field));
    }
    for (line, field) in matrix {
        let output = run(words(&line));
        let (code, said) = outcome(&output);
        assert_eq!(code, Some(2), "{line}: {said}");
        assert_eq!(said.lines().count(), 1, "{line}: {said}");
        assert!(said.starts_with("forebay: ") && said.contains(field), "{line}: {said}");
        assert!(output.stdout.is_empty(), "{line}");
    }
}

#[test]
fn advice_comes_from_a_trace() {
    let dir = common::TempDir::new("advise");
    let (trace, plot) = (dir.at("t.csv"), dir.at("t.svg"));
    // Twice around 4 MiB, and then 64 MiB once.
    let offsets = (0..2048u64).map(|at| at % 1024).chain(4096..20480);
    let lines: String = offsets.map(|block| format!("R,{},4096\n", block * 4096)).collect();
    std::fs::write(&trace, format!("op,offset,size\n{lines}")).expect("writable");
    let mut words = vec![OsStr::new("advise"), trace.as_os_str()];
    let (code, _) = outcome(&run(&words));
    assert_eq!(code, Some(0));
    words.extend(["--sizes", "8M,2M,64M", "--json", "--plot"].map(OsStr::new));
    words.push(plot.as_os_str());
    let output = run(&words);
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let hits: Vec<f64> =
        (0..3).map(|row| found["rows"][row]["reads"]["share"].as_f64().expect("a share")).collect();
    let expected = 1024.0 / (2048.0 + 16384.0);
    assert_eq!(hits, [0.0, expected, expected]);
    assert_eq!((&found["take"], &found["one_of"]), (&(8 << 20).into(), &1.into()));
    assert!(std::fs::read_to_string(&plot).expect("drawn").contains("</svg>"));
    let (code, said) = outcome(&run(["advise", "/nonexistent/t"]));
    assert_eq!((code, said.lines().count()), (Some(1), 1), "{said}");
    std::fs::write(&trace, "op,offset,size\nR,x,1\n").expect("writable");
    let (code, said) = outcome(&run(&words));
    assert!(code == Some(1) && said.contains("line 2"), "{said}");
}

#[test]
fn wrong_utf8_is_refused() {
    let wrong = OsStr::from_bytes(b"\xff\xfe");
    for line in [
        vec![OsStr::new("show"), wrong],
        vec![
            OsStr::new("create"),
            OsStr::new("v"),
            OsStr::new("-s"),
            wrong,
            OsStr::new("-p"),
            wrong,
        ],
        vec![OsStr::new("set"), OsStr::new("v"), wrong],
        vec![wrong],
    ] {
        let (code, said) = outcome(&run(&line));
        assert_eq!((code, said.lines().count()), (Some(2), 1), "{line:?}: {said}");
    }
}

#[test]
fn without_a_daemon_the_way_out_is_named() {
    let (code, said) = outcome(&run(["--socket", "/nonexistent/s", "list"]));
    assert_eq!((code, said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains("/nonexistent/s") && said.contains("forebay daemon"), "{said}");
    let from_env = forebay().env("FOREBAY_SOCKET", "/nonexistent/t").arg("list").output();
    assert!(outcome(&from_env.expect("it runs")).1.contains("/nonexistent/t"));
}

/// With `UPDATE_HELP=1` the files are written instead.
#[test]
fn help_is_as_published() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/help");
    let verbs = [
        "",
        "daemon",
        "create",
        "profiles",
        "list",
        "show",
        "top",
        "events",
        "support",
        "set",
        "flush",
        "stop",
        "start",
        "delete",
        "check",
        "dump",
        "demo",
        "advise",
        "trace",
        "completions",
        "man",
    ];
    for verb in verbs {
        let output = run(verb.split(' ').filter(|word| !word.is_empty()).chain(["--help"]));
        assert_eq!(output.status.code(), Some(0), "{verb}");
        let help = String::from_utf8_lossy(&output.stdout);
        let file = format!("{folder}/{}.txt", if verb.is_empty() { "forebay" } else { verb });
        if std::env::var_os("UPDATE_HELP").is_some() {
            std::fs::write(&file, &*help).expect("writable");
        }
        let published = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(help == published, "{file} differs; look, then set UPDATE_HELP=1:\n{help}");
    }
}

/// Compares a table in the documentation with the program's own. With `UPDATE_HELP=1` it is
/// written.
fn check_table(page: &str, head: &str, declared: &str) {
    let file = format!("{}/../../docs/{page}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&file).expect("the page is there");
    let start = text.find(head).expect("the table begins");
    let end = start + text[start..].find("\n\n").expect("the table ends") + 1;
    if std::env::var_os("UPDATE_HELP").is_some() {
        let written = [&text[..start], declared, &text[end..]].concat();
        std::fs::write(file, written).expect("writable");
        return;
    }
    assert!(text[start..end] == *declared, "docs/{page} differs; set UPDATE_HELP=1");
}

#[test]
fn the_settings_are_documented_as_they_are_declared() {
    check_table("operations.md", "| setting | values |", &forebay_settings::help::markdown());
}

#[test]
fn the_kinds_of_events_are_documented_as_they_are_declared() {
    let head = "| kind | severity | meaning, and fields |\n";
    let rows = forebay_admin::EventKind::ALL
        .iter()
        .map(|kind| format!("| `{kind}` | {} | {} |\n", kind.severity().name(), kind.help()));
    let declared = format!("{head}|---|---|---|\n{}", rows.collect::<String>());
    check_table("events.md", head, &declared);
}

/// Every number that the volume table keeps for a setting is on the page about the format.
#[test]
fn the_tags_of_settings_are_in_the_format() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/format.md");
    let page = std::fs::read_to_string(file).expect("the page is there");
    let rows = page.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        Some((cells.next()?.split(", "), cells.next()?.split(", ")))
    });
    let documented: Vec<(&str, &str)> = rows.flat_map(|(tags, names)| tags.zip(names)).collect();
    for setting in forebay_settings::SETTINGS {
        let Some(tag) = setting.tag else { continue };
        let row = (tag.to_string(), setting.name);
        let found = documented.iter().any(|(tag, name)| (*tag, *name) == (&row.0, row.1));
        assert!(found, "docs/format.md has no row for tag {tag}, {}", setting.name);
    }
}

#[test]
fn completions_and_manual_pages_come_from_the_same_declarations() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = run(["completions", shell]);
        let script = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && script.contains("discard-dirty"), "{shell}");
    }
    let offered = |words: &str| {
        let line = format!(
            "forebay() {{ echo one other; }}; . /dev/stdin; COMP_WORDS=(forebay {words}); \
             COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _forebay_values forebay \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"; \
             echo \"${{COMPREPLY[@]}}\""
        );
        let mut bash = Command::new("bash");
        bash.args(["-c", &line]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut bash = bash.spawn().expect("bash is there");
        let script = run(["completions", "bash"]).stdout;
        bash.stdin.take().expect("piped").write_all(&script).expect("it reads");
        let output = bash.wait_with_output().expect("it ends");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    for (words, expected) in [
        ("create v --policy f", "fifo"),
        ("create v --durability ''", "strict flush deferred"),
        ("show o", "one other"),
        ("--socket /s flush on", "one"),
        ("set one dirty_a", "dirty_age="),
        ("set one mode = writet", "writethrough"),
        ("create v --set policy = f", "fifo"),
        ("create v --set commit", "commit_interval="),
    ] {
        assert_eq!(offered(words), expected, "{words}");
    }
    let dir = common::TempDir::new("man");
    let output = run([OsStr::new("man"), dir.at("").as_os_str()]);
    assert!(output.status.success(), "{}", outcome(&output).1);
    let page = std::fs::read_to_string(dir.at("forebay-create.1")).expect("a page");
    assert!(page.contains("alignment"));
    let absent = run([OsStr::new("man"), dir.at("absent").as_os_str()]);
    assert_eq!(absent.status.code(), Some(2));
}

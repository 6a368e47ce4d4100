# Checks the checkout of llm.c, reads its files, and writes all edits or none.
use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';
use File::Basename qw(basename);
use File::Path qw(remove_tree);
use File::Temp qw(tempdir);

our ($ROOT, $HERE, %FILE);
our %files;             # name -> the file as read, its mask, its edits, and what the script has found in it
our ($dir, $cuda, $no_git);

# Returns git's output whatever its status, with the status in $?. Its messages are not shown.
sub git_output {
    my $pid = open(my $out, '-|') // stop("fork: $!");
    if (!$pid) {
        open STDERR, '>', '/dev/null';
        exec 'git', '-C', $dir, @_ or exit 127;
    }
    local $/;
    my $text = <$out> // '';
    close $out;
    $? >> 8 == 127 and stop('git is not installed');
    return $text;
}

# Returns git's output, or undef if it fails.
sub git {
    my $text = git_output(@_);
    return $? ? undef : $text;
}

sub read_whole ($path) {
    open my $in, '<:raw', $path or die "$path: $!\n";
    local $/;
    my $text = <$in>;
    close $in or die "$path: $!\n";
    return $text;
}

sub write_whole ($path, $text, $mode) {
    open my $out, '>:raw', $path or die "$path: $!\n";
    print $out $text or die "$path: $!\n";
    close $out or die "$path: $!\n";
    chmod $mode & 07777, $path or die "$path: $!\n";
}

sub load ($name) {
    my $path = "$dir/$name";
    -f $path or stop("$path: no such file: $dir must be a checkout of llm.c from June 2024 on");
    my $mode = (stat _)[2];
    $mode & 0200 or stop("$path: is read-only; nothing was changed");
    my $text = eval { read_whole($path) };
    defined $text or stop($@);
    return $files{$name} = { name => $name, path => $path, mode => $mode, text => $text };
}

sub check_top {
    my $prefix = git('rev-parse', '--show-prefix');
    defined $prefix
        or stop("$dir: not a git checkout; give a clone of llm.c, or a copy and --no-git");
    $prefix =~ /^\s*$/ or stop("$dir: is inside a checkout; give the checkout's top folder");
}

sub check_unchanged {
    my $status = git('status', '--porcelain', '--untracked-files=no');
    defined $status or stop("$dir: git status failed");
    my @changed = $status =~ /^...(.*)$/mg or return;
    my $more = @changed > 10 ? ' and ' . (@changed - 10) . ' more' : '';
    my $some = join ', ', @changed > 10 ? @changed[0 .. 9] : @changed;
    stop("$dir: has uncommitted changes ($some$more); commit or stash them first");
}

sub check_checkout {
    -d $dir or stop("$dir: no such folder; git clone https://github.com/karpathy/llm.c $dir gets llm.c");
    check_top() if !$no_git;
    load($_) for names_to_edit();
    check_not_patched();
    check_unchanged() if !$no_git;
    -e "$dir/llmc_zero" and stop("$dir/llmc_zero: already exists; remove it first");
}

# With --cuda the folder need not have train_gpt2.c.
sub names_to_edit {
    my @names = @FILE{qw(trainer loader makefile)};
    return @names if !$cuda;
    shift @names if !-e "$dir/$FILE{trainer}";
    return (@names, $FILE{cuda});
}

sub check_not_patched {
    -d "$dir/llmc_zero" && $files{ $FILE{makefile} }{text} =~ /llmc_zero/ or return;
    my @not = grep { $_ =~ /train/ && $files{$_}{text} !~ /LLMC_ZERO/ } keys %files;
    @not and stop("$dir: is patched, but not $not[0]; restore it (git checkout ., rm -r llmc_zero) and "
                 . 'patch again');
    print "$dir is already patched; nothing was changed\n";
    exit 0;
}

sub print_diff {
    my $temporary = tempdir(CLEANUP => 1);
    $| = 1;
    for my $f (map { $files{$_} } sort keys %files) {
        my $path = "$temporary/" . basename($f->{name});
        write_whole($path, $f->{new}, 0644);
        my @labels = ('--label', "a/$f->{name}", '--label', "b/$f->{name}");
        my $status = system('diff', '-u', @labels, $f->{path}, $path) >> 8;
        $status < 2 or stop("diff failed");
    }
}

sub copy_plugin ($to) {
    mkdir $to or die "$to: $!\n";
    system('cp', '-R', "$ROOT/llmc_zero/.", "$HERE/llmc_zero/.", "$ROOT/LICENSE", $to) == 0
        or die "$to: cannot be written\n";
}

# Writes all files under temporary names, then renames them. Restores the tree if anything fails.
sub commit_edits {
    my @changed = map { $files{$_} } grep { $files{$_}{new} ne $files{$_}{text} } sort keys %files;
    my ($plugin, $new, @renamed) = ("$dir/llmc_zero", ".new.$$");
    local @SIG{qw(INT TERM HUP)} = ('IGNORE') x 3;
    my $done = eval {
        copy_plugin("$plugin$new");
        write_whole("$_->{path}$new", $_->{new}, $_->{mode}) for @changed;
        rename "$plugin$new", $plugin or die "$plugin: $!\n";
        for my $f (@changed) {
            rename "$f->{path}$new", $f->{path} or die "$f->{path}: $!\n";
            push @renamed, $f;
        }
        1;
    };
    return if $done;
    my $why = $@;
    for my $f (@renamed) {
        my $back = eval {
            write_whole("$f->{path}$new", $f->{text}, $f->{mode});
            rename "$f->{path}$new", $f->{path};
        };
        $back or stop("$why$f->{path}: cannot be restored; git checkout restores it");
    }
    unlink map { "$_->{path}$new" } @changed;
    remove_tree($plugin, "$plugin$new");
    chomp $why;
    stop("$why; nothing was changed");
}

1;

# Checks the checkout of llm.c, reads its files, and writes all edits or none.
use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';
use File::Basename qw(dirname);
use File::Path qw(make_path remove_tree);
use File::Temp qw(tempdir);

our ($ROOT, $HERE, %FILE, $dir, %option);
our %files;             # name -> the file as read, its new text, and what the script reports of it

# Returns the output of a command in a folder, with the status in $?. Its messages go to $errors.
sub captured ($folder, $errors, @command) {
    my $pid = open(my $out, '-|') // stop("fork: $!");
    if (!$pid) {
        chdir $folder and open STDIN, '<', '/dev/null' and open STDERR, $errors and exec @command;
        exit 127;
    }
    local $/;
    my $text = <$out> // '';
    close $out;
    return $text;
}

# Returns git's output whatever its status; git() returns undef if it fails. Messages are not shown.
sub git_output (@arguments) {
    my $text = captured($dir, '>/dev/null', 'git', @arguments);
    $? >> 8 == 127 and stop('git is not installed');
    return $text;
}
sub git (@arguments) {
    my $text = git_output(@arguments);
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
    make_path(dirname($path));
    open my $out, '>:raw', $path or die "$path: $!\n";
    print $out $text or die "$path: $!\n";
    close $out or die "$path: $!\n";
    chmod $mode & 07777, $path or die "$path: $!\n";
}

sub load ($name) {
    my $path = "$dir/$name";
    -f $path or stop("$path: no such file: $dir must be a checkout of llm.c from June 2024 on");
    return $files{$name} = { name => $name, path => $path, mode => (stat _)[2], text => read_whole($path) };
}

sub check_checkout {
    -d $dir or stop("$dir: no such folder; git clone https://github.com/karpathy/llm.c $dir gets llm.c");
    -e "$dir/llmc_zero" and stop("$dir/llmc_zero: already exists; to patch again, restore the fork first: "
                                 . 'git checkout . && rm -r llmc_zero');
    load($_) for names_to_edit();
    my $changed = git(qw(status --porcelain --untracked-files=no -- .)) // '';
    chomp $changed;
    $changed eq '' or stop("$dir: has uncommitted changes; commit or stash them first:\n$changed");
}

# With --cuda the folder need not have train_gpt2.c.
sub names_to_edit {
    my @names = @FILE{qw(trainer loader makefile)};
    return @names if !$option{cuda};
    shift @names if !-e "$dir/$FILE{trainer}";
    return (@names, $FILE{cuda});
}

sub print_diff {
    my $temporary = tempdir(CLEANUP => 1);
    for my $f (values %files) {
        write_whole("$temporary/a/$f->{name}", $f->{text}, $f->{mode});
        write_whole("$temporary/b/$f->{name}", $f->{new}, $f->{mode});
    }
    print captured($temporary, '>/dev/null',
                   qw(git diff --no-index --no-ext-diff --no-color --no-prefix a b));
}

sub copy_plugin ($to) {
    mkdir $to or die "$to: $!\n";
    system('cp', '-R', "$ROOT/llmc_zero/.", "$HERE/llmc_zero/.", "$ROOT/LICENSE", $to) == 0
        or die "$to: cannot be written\n";
}

# Writes all files under temporary names, so that a full disk changes nothing, and then renames them.
sub commit_edits {
    my @changed = grep { $_->{new} ne $_->{text} } map { $files{$_} } sort keys %files;
    my ($plugin, $new) = ("$dir/llmc_zero", ".new.$$");
    local @SIG{qw(INT TERM HUP)} = ('IGNORE') x 3;
    my $written = eval {
        copy_plugin("$plugin$new");
        write_whole("$_->{path}$new", $_->{new}, $_->{mode}) for @changed;
        1;
    };
    if (!$written) {
        my $why = $@;
        unlink map { "$_->{path}$new" } @changed;
        remove_tree("$plugin$new");
        stop($why =~ s/\n/; nothing was changed/r);
    }
    for my $path ($plugin, map { $_->{path} } @changed) {
        rename "$path$new", $path
            or stop("$path: $!; git checkout . and rm -r llmc_zero restore the fork");
    }
}

1;

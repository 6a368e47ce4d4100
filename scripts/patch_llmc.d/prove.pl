# The proof: with the same small model and tokens, the original in one process and the patched trainer on two
# ranks must print the same losses, and the patched trainer must print the same digest at stages 0 and 3.
use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';
use File::Basename qw(dirname);
use File::Path qw(make_path);
use File::Temp qw(tempdir);

our (%files, %FILE, $dir, $no_git);

# A different order of fp32 sums changes a loss by less than 1e-6; the smallest silent error seen was 4e-6.
my $MOST = 2e-6;
my $SECONDS = 120;      # limit for each build or run
my %SHAPE = (positions => 1024, vocabulary => 512, layers => 2, heads => 2, channels => 64,
             tokens => 1 << 16);

my $random = 42;
sub uniform { return ($random = ($random * 1103515245 + 12345) % 2147483648) / 2147483648 }

sub make_file ($path, @parts) {
    make_path(dirname($path));
    write_whole($path, join('', @parts), 0644);
}

# Returns a header in llm.c's format: 256 integers.
sub header { return pack 'l<256', @_, (0) x (256 - @_) }

# Returns a model file with twice the parameters of llm.c's GPT-2, so that forks may have more tensors.
sub model_bytes {
    my ($T, $V, $L, $C) = @SHAPE{qw(positions vocabulary layers channels)};
    my $n = 2 * ($V * $C + $T * $C + $L * (12 * $C * $C + 13 * $C) + 2 * $C);
    return header(20240326, 3, $T, $V, $L, $SHAPE{heads}, $C, $V)
        . pack 'f<*', map { uniform() - 0.5 } 1 .. $n;
}

sub tokenizer_bytes {
    my $V = $SHAPE{vocabulary};
    return header(20240328, 2, $V, $V - 1) . join '', map { pack 'C/a', chr(97 + $_ % 26) } 1 .. $V;
}

# Returns a token file: a pattern that can be learned, and noise.
sub data_bytes {
    my $V = $SHAPE{vocabulary};
    my @tokens = map { int(uniform() < 0.2 ? uniform() * $V : $_ * $_ / 3 % 50) } 1 .. $SHAPE{tokens};
    return header(20240520, 1, scalar @tokens) . pack 'v*', @tokens;
}

# Writes the .bin files that main() names: the first is the model, the others are tokenizers or data.
sub make_inputs ($folder) {
    my $f = $files{ $FILE{trainer} };
    my @names = text_of($f, function($f, 'main')) =~ /"([^"\n]+\.bin)"/g;
    $random = 42;
    for my $name (@names) {
        next if $name =~ m{^/|\.\.};
        make_file("$folder/$name", $name eq $names[0] ? model_bytes()
                  : $name =~ /tokenizer/ ? tokenizer_bytes() : data_bytes());
    }
}

# Returns the original with twice the rows per batch, so that one process reads as many as two ranks.
sub twice_the_rows ($f) {
    my $in = function($f, 'main');
    my ($call) = find_all($f, $in, 'dataloader_init(<...>);');
    my $rows = (split /\s*,\s*/, $call->{1})[2];
    my $set = find($f, $in, qr/\b\Q$rows\E\s*=\s*([^;,]+)/, "$rows = NUMBER, the rows of a batch");
    my $text = $f->{text};
    substr $text, $set->{from}, $set->{to} - $set->{from}, "$rows = 2 * ($set->{1})";
    return $text;
}

# Returns the files that git tracks or, with --no-git, all files, but no large ones.
sub tree_files {
    my $list = $no_git ? `cd '$dir' && find . -type f -size -1024k -not -path './.git/*' -printf '%P\\0'`
                       : git('ls-files', '-z');
    return grep { -f "$dir/$_" && !-l "$dir/$_" && -s _ < 1 << 20 } split /\0/, $list // '';
}

sub copy_tree ($to) {
    for my $name (tree_files()) {
        make_path(dirname("$to/$name"));
        write_whole("$to/$name", read_whole("$dir/$name"), (stat "$dir/$name")[2]);
    }
    make_inputs($to);
}

# Runs a command in a folder. Returns its output, and undef or the reason why it failed.
sub output_of ($folder, @command) {
    my $pid = open my $out, '-|';
    defined $pid or stop("fork: $!");
    if (!$pid) {
        delete @ENV{qw(MAKEFLAGS MAKELEVEL MFLAGS ZERO_CONFIG)};
        chdir $folder and open STDIN, '<', '/dev/null' and open STDERR, '>&', \*STDOUT
            and exec 'timeout', '-k', '5', $SECONDS, @command;
        exit 127;
    }
    local $/;
    my $text = <$out> // '';
    return ($text, undef) if close $out;
    return ($text, "still running after $SECONDS seconds") if $? >> 8 == 124;
    # without mpirun's notes
    my @lines = grep { /\S/ && !/^\[\S+:\d+\] / } split /\n/, $text =~ s/^-{70,}\n.*?^-{70,}\n//gmsr;
    splice @lines, 0, -6 if @lines > 6;
    return ($text, join "\n    ", 'fails with status ' . ($? >> 8) . ':', @lines);
}

# Ends the proof; prove() then returns the reason.
sub unproven ($why) { die { why => $why } }

sub built ($folder, $which) {
    my ($text, $failed) = output_of($folder, 'make', '-j2', 'train_gpt2', 'ZERO_OPT=-O1');
    unproven("make train_gpt2 in a copy of the $which: $failed") if $failed;
}

sub losses ($text) { return $text =~ /\bloss:?\s+(-?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf))/gi }

# Runs a trainer; returns its losses, and its digest if it prints one.
sub run_of ($folder, $which, @command) {
    my ($text, $failed) = output_of($folder, 'env', 'OMP_NUM_THREADS=1', @command, './train_gpt2');
    unproven("$which: $failed") if $failed;
    my ($digest) = $text =~ /^params_hash (\w+)/m;
    return { which => $which, losses => [ losses($text) ], digest => $digest };
}

sub on_two_ranks ($folder, $stage) {
    return run_of($folder, "stage $stage, 2 ranks", "ZERO_STAGE=$stage", 'ZERO_POISON=1', 'ZERO_CHECK=1',
                  'OMPI_ALLOW_RUN_AS_ROOT=1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1',
                  qw(mpirun --oversubscribe --bind-to none -np 2));
}

sub differ ($a, $b) {
    return lc $a ne lc $b if "$a$b" =~ /[a-z]{3}/i;
    return abs($a - $b) > $MOST * (abs($a) > 1 ? abs($a) : 1);
}

# Returns the index of the first loss that differs from the original's, or undef.
sub first_difference ($original, $run) {
    my ($expected, $got) = ($original->{losses}, $run->{losses});
    for my $i (0 .. $#$expected) {
        return $i if $i > $#$got || differ($expected->[$i], $got->[$i]);
    }
    return $#$got > $#$expected ? scalar @$expected : undef;
}

sub table ($from, $to, @runs) {
    my $row = sub { join('', map { sprintf '%18s', $_ } @_) . "\n" };
    my $text = $row->('loss number', map { $_->{which} } @runs);
    for my $i ($from .. $to) {
        $text .= $row->($i + 1, map { $_->{losses}[$i] // '-' } @runs);
    }
    return $text;
}

sub compared ($original, @runs) {
    my $n = @{ $original->{losses} };
    $n >= 4 or unproven("the original prints $n losses (\"loss NUMBER\"); the proof needs at least 4");
    for my $run (@runs) {
        my $i = first_difference($original, $run) // next;
        my $from = $i > 2 ? $i - 2 : 0;
        unproven('the losses differ from number ' . ($i + 1) . " on:\n"
                 . table($from, $i + 1, $original, @runs));
    }
    my @digests = map { $_->{digest} // 'none' } @runs;
    $digests[0] eq $digests[1] or unproven("the digests of the parameters differ: @digests");
    my $last = $n - 1;
    return table(0, 1, $original, @runs) . table($last, $last, $original, @runs) =~ s/^.*\n//r
        . "$n losses agree to $MOST; parameters after the last step: digest $digests[0] at both stages\n";
}

# Returns the table and undef if the runs are equal, else undef and the reason.
sub prove {
    my $temporary = tempdir('patch_llmc.XXXXXX', TMPDIR => 1, CLEANUP => 1);
    my ($original, $patched) = ("$temporary/original", "$temporary/patched");
    my $table = eval {
        copy_tree($_) for $original, $patched;
        write_whole("$original/$FILE{trainer}", twice_the_rows($files{ $FILE{trainer} }), 0644);
        write_whole("$patched/$_->{name}", $_->{new}, 0644) for values %files;
        copy_plugin("$patched/llmc_zero");
        built($original, 'original');
        my $expected = run_of($original, 'original', 'OMPI_COMM_WORLD_RANK=0');
        built($patched, 'patched trainer');
        compared($expected, map { on_two_ranks($patched, $_) } 0, 3);
    };
    return ($table, undef) if defined $table;
    my $why = $@;
    return (undef, ref $why ? $why->{why} : $why);
}

1;

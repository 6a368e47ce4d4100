#!/usr/bin/env perl
# Prints each broken link in the documentation under ROOT, and each missing file of docs/ that another file
# names; fails if there are any. Links may name a heading.
# Usage: perl tests/links.pl ROOT
use strict;
use warnings;
use File::Basename;
use File::Find;

my $root = shift // die "Usage: perl tests/links.pl ROOT\n";
chdir $root or die "$root: $!\n";
my (%lines, $found);
my $skipped = qr{^\./(build|third_party|\.git|data)$};
find({ no_chdir => 1, preprocess => sub { grep { "$File::Find::dir/$_" !~ $skipped } @_ }, wanted => sub {
    return unless -f && m{\.(md|c|h|cu|def|sh|pl|py|mk|sbatch)$|/Makefile$|/patch_llmc$};
    open my $file, '<', $_ or die "$_: $!\n";
    $lines{s{^\./}{}r} = [<$file>];
} }, '.');

sub report { print "@_\n"; $found = 1 }

# Returns the headings of a page as GitHub names them: lower case, punctuation removed, blanks to hyphens.
sub anchors {
    my %anchors;
    my $in_code;
    for (@{ $lines{$_[0]} // [] }) {
        $in_code = !$in_code if /^\s*```/;
        next if $in_code || !/^#+ +(.*?)\s*$/;
        my $name = lc($1 =~ s/\[([^]]*)\]\([^)]*\)/$1/gr);
        $name =~ s/[^\w\- ]//g;
        $anchors{ $name =~ s/ /-/gr } = 1;
    }
    return \%anchors;
}
for my $page (sort grep { /\.md$/ && !/^CHANGELOG/ } keys %lines) {
    my ($in_code, $number) = (0, 0);
    for (@{ $lines{$page} }) {
        $number++;
        $in_code = !$in_code if /^\s*```/;
        next if $in_code;
        for my $link (s/`[^`]*`//gr =~ /\]\(([^)\s]+)\)/g) {
            next if $link =~ /^(https?|mailto):/;
            my ($file, $anchor) = $link =~ /^([^#]*)#?(.*)$/;
            my $target = $file eq '' ? $page : dirname($page) . "/$file";
            $target =~ s{^\./}{};
            1 while $target =~ s{[^/]+/\.\./}{};
            my $at = "$page:$number: $link";
            if (!-e $target) { report("$at: no such file") }
            elsif ($anchor ne '' && !anchors($target)->{$anchor}) { report("$at: no such heading") }
        }
    }
}
for my $source (sort grep { !/\.md$|^tests\/test_house\.sh$/ } keys %lines) {
    my $number = 0;
    for (@{ $lines{$source} }) {
        $number++;
        for my $name (m{\b(docs/[\w/.-]+\.(?:md|svg))\b}g) {
            report("$source:$number: $name: no such file") if !-e $name;
        }
    }
}
exit($found ? 1 : 0);
